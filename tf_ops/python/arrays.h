// The collectives over NumPy arrays. They release the GIL while they block, and
// raise errors as exceptions. They answer signals: if a handler raises, as at
// Ctrl-C, the collective goes on without its caller.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace hvd {

using Arrays = std::vector<pybind11::array>;

// What a call needs beside its arrays; each kind uses some of it.
struct CallOptions {
  int op = 0;  // of reductions, like the factors
  double prescale = 1.0;
  double postscale = 1.0;
  int wire_format = 0;                         // of an allreduce
  int32_t root_rank = 0;                       // of a broadcast
  std::optional<std::vector<int64_t>> splits;  // of an alltoall
  int32_t process_set_id = 0;
  // Of an allreduce or a broadcast: the results replace the arrays, which must
  // be C-contiguous and writable.
  bool in_place = false;
};

// A collective over arrays that has begun. Used with the GIL. If it is
// destroyed before the end, the collective goes on and keeps the arrays.
class ArrayCall {
 public:
  ArrayCall(const std::string& kind, const std::string& name,
            const Arrays& arrays, const CallOptions& options);
  ArrayCall(const ArrayCall&) = delete;
  ArrayCall& operator=(const ArrayCall&) = delete;
  ~ArrayCall();

  bool is_done() const;
  // Blocks; returns the results, or raises. May be called again.
  Arrays Wait();
  // Of an alltoall, after Wait(): the rows from each rank.
  std::vector<int64_t> received() const;

 private:
  struct Results;
  struct State;

  std::unique_ptr<State> state_;
};

void Barrier(const std::string& name, int32_t process_set_id);
// Fails a collective on all ranks, with `why` as the reason: this rank has
// come, but its call was wrong. Raises only what a signal handler raises. An
// empty name stands for all calls of a program that could not be built.
void RefuseCollective(const std::string& kind, const std::string& name,
                      int32_t process_set_id, const std::string& why);
// Returns the global rank that has joined last.
int64_t Join(int32_t process_set_id, bool average_over_active);

}  // namespace hvd
