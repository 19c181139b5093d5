// What a framework hands to the engine: one collective call of one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/common/types.h"

namespace hvd {

class Communicator;
class Gpu;
class GpuEvent;

// The GPU that holds the tensors of a request, and the stream they are used on.
struct GpuPlace {
  int ordinal = -1;        // as the CUDA runtime counts; -1: host memory
  void* stream = nullptr;  // a cudaStream_t
  bool is_second = false;  // see DeviceKind; the worker sets it
  // Call `done` as soon as all work is queued on the GPU and `stream` is made
  // to wait for it, and not only when that work has ended. An error that comes
  // later is that of a later request.
  bool done_in_stream_order = false;
};

// One tensor of a request. The memory is borrowed until `done` was called.
struct RequestTensor {
  DataType dtype = DataType::kFloat32;
  Shape shape;                  // of the input
  const void* input = nullptr;  // may equal `output`
  void* output = nullptr;       // null where there is `allocate_output`
};

struct Request {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  std::string name;              // pairs the call across ranks; not empty
  int32_t process_set_id = 0;    // 0: all ranks
  ReduceOp op = ReduceOp::kSum;  // allreduce, reducescatter
  int32_t root_rank = 0;         // broadcast: a global rank, of the set
  double prescale = 1.0;   // allreduce, reducescatter: factor of every input
  double postscale = 1.0;  // allreduce, reducescatter: factor of the result
  bool average = false;    // allgather: divide the values by the size
  // Allgather, alltoall: the shapes of the outputs are fixed before the ranks
  // meet, as a compiler wants it: all ranks must give as many rows.
  bool equal_rows = false;
  // Join: Average divides by the ranks that have not joined, not by all.
  bool average_over_active = false;
  // Alltoall: rows of the one tensor for each rank of the set, their sum its
  // first dimension; empty: equal parts.
  std::vector<int64_t> splits;
  // One, or the members of a group; none for barrier and join.
  std::vector<RequestTensor> tensors;
  // What is queued on its stream when the request is submitted comes first.
  GpuPlace gpu;
  std::shared_ptr<GpuEvent> ready;  // on a GPU: when that is so; Submit sets it
  // Not ok: this rank has come, and cannot take part. The call fails with that
  // on all ranks, when all have come.
  Status failure;

  // Allgather, alltoall and reducescatter: gives the memory for output
  // `index`, whose shape is `shape`. Called at most once for each tensor, on
  // any thread, before data moves, perhaps under the engine's lock: it must
  // wait for nobody. In host memory an error fails this call on all ranks.
  std::function<Status(size_t index, const Shape& shape, void** output)>
      allocate_output;

  // May be null. Alltoall: the rows received from each rank; join: the rank
  // that joined last, as one value. Called once, on any thread, before `done`.
  std::function<Status(const std::vector<int64_t>& values)> take_values;

  // On a GPU, may be null: takes a point behind the work of the call as soon as
  // all of that is queued, for `stream` to be made to wait for it later; so it
  // is not made to by `done_in_stream_order`. Called at most once, on any
  // thread, before `done`.
  std::function<void(std::shared_ptr<GpuEvent> end)> take_end;

  // May be null. Barrier on a GPU: what to do with the communicator, in the
  // order of the collectives, with nothing in flight; on the engine's thread.
  std::function<Status(Gpu* gpu, Communicator* communicator, int rank,
                       const std::function<Status()>& look)>
      with_communicator;

  // Called exactly once, on the engine's completion thread or on a thread that
  // submits, perhaps before its Submit returns; never under a lock.
  std::function<void(const Status&)> done;
};

}  // namespace hvd
