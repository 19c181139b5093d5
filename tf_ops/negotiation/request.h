// What a framework hands to the engine: one collective call of one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/types.h"
#include "tf_ops/negotiation/training_step.h"

namespace hvd {

class Communicator;
class Gpu;
class GpuEvent;

// The GPU that holds the tensors of a request, and the stream they are used on.
struct GpuPlace {
  int ordinal = -1;        // as the CUDA runtime counts; -1: host memory
  void* stream = nullptr;  // a cudaStream_t
  bool is_second = false;  // see DeviceKind; GpuPlane::Admit sets it
  // Call `done` once all work is queued on the GPU and `stream` waits for it,
  // instead of when that work has ended. A later error fails a later request.
  bool done_in_stream_order = false;
};

// The name of a request with a failure that stands for all calls of a program
// which this rank could not build.
inline constexpr char kWholeProgram[] = "hvd_keras/program";

// One tensor of a request. The memory is borrowed until `done` was called.
struct RequestTensor {
  DataType dtype = DataType::kFloat32;
  Shape shape;                  // of the input
  const void* input = nullptr;  // may equal `output`
  void* output = nullptr;       // null where there is `allocate_output`
};

struct Request {
  // Of all requests of this process, from 1 on, in the order of submission; the
  // engine sets it.
  uint64_t number = 0;
  Clock::time_point submitted;  // the engine sets it
  TrainingStep step = 0;        // that this rank is in; SubmitGlobal sets it
  CollectiveKind kind = CollectiveKind::kAllreduce;
  std::string name;              // pairs the call across ranks; not empty
  int32_t process_set_id = 0;    // 0: all ranks
  ReduceOp op = ReduceOp::kSum;  // allreduce, reducescatter
  int32_t root_rank = 0;         // broadcast: a global rank, of the set
  double prescale = 1.0;   // allreduce, reducescatter: factor of every input
  double postscale = 1.0;  // allreduce, reducescatter: factor of the result
  WireFormat wire_format = WireFormat::kExact;  // allreduce
  bool average = false;  // allgather: divide the values by the size
  // Allgather, alltoall: all ranks must give equally many rows, because a
  // compiler has fixed the shapes of the outputs before the ranks meet.
  bool equal_rows = false;
  // Join: Average divides by the ranks that have not joined, not by all.
  bool average_over_active = false;
  // Alltoall: how many rows of the one tensor each rank of the set gets; they
  // sum to its first dimension. Empty: equal parts.
  std::vector<int64_t> splits;
  // One, or the members of a group; none for barrier and join.
  std::vector<RequestTensor> tensors;
  // The collective runs behind what its stream has queued at submission.
  GpuPlace gpu;
  std::shared_ptr<GpuEvent> ready;  // GPU: the end of that work; Submit sets it
  // Not ok: this rank comes but cannot take part. The call fails with this
  // error at once, and on ranks that come later when they do.
  Status failure;

  // Allgather, alltoall and reducescatter: allocates output `index` of shape
  // `shape`. Called at most once for each tensor, on any thread, before data
  // moves, perhaps under the engine's lock: it must not wait. In host memory an
  // error fails this call on all ranks.
  std::function<Status(size_t index, const Shape& shape, void** output)>
      allocate_output;

  // May be null. Alltoall: the rows received from each rank; join: the rank
  // that joined last, as one value. Called once, on any thread, before `done`.
  std::function<Status(const std::vector<int64_t>& values)> take_values;

  // On a GPU, may be null: gets an event behind the work of the call once all
  // of it is queued. The caller later makes `stream` wait for the event;
  // `done_in_stream_order` then does not. Called at most once, on any thread,
  // before `done`.
  std::function<void(std::shared_ptr<GpuEvent> end)> take_end;

  // May be null. Barrier on a GPU: uses the communicator, in the order of the
  // collectives, with nothing in flight. Called on the engine's thread.
  std::function<Status(Gpu* gpu, Communicator* communicator, int rank,
                       const std::function<Status()>& look)>
      with_communicator;

  // Called exactly once, on a thread of the engine or on one that submits,
  // perhaps before its Submit returns; never under a lock.
  std::function<void(const Status&)> done;
};

}  // namespace hvd
