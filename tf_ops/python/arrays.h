// The collectives over NumPy arrays. They release the GIL while they block, and
// raise errors as exceptions. They answer signals: if a handler raises, as at
// Ctrl-C, the collective goes on without its caller.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hvd {

using Arrays = std::vector<pybind11::array>;

// The arguments of all functions that reduce.
struct ReduceArguments {
  int op = 0;
  double prescale = 1.0;
  double postscale = 1.0;
};

// With `in_place` the results replace the arrays, which must be C-contiguous
// and writable.
Arrays AllreduceArrays(const std::string& name, const Arrays& arrays,
                       const ReduceArguments& arguments, int32_t process_set_id,
                       bool in_place);
Arrays ReducescatterArrays(const std::string& name, const Arrays& arrays,
                           const ReduceArguments& arguments,
                           int32_t process_set_id);
Arrays BroadcastArrays(const std::string& name, const Arrays& arrays,
                       int root_rank, int32_t process_set_id);
Arrays AllgatherArrays(const std::string& name, const Arrays& arrays,
                       int32_t process_set_id);
// Returns the received rows, and how many came from each rank.
std::pair<pybind11::array, std::vector<int64_t>> AlltoallArray(
    const std::string& name, const pybind11::array& array,
    const std::optional<std::vector<int64_t>>& splits, int32_t process_set_id);
void Barrier(const std::string& name, int32_t process_set_id);
// Fails a collective on all ranks, with `why` as the reason: this rank has
// come, but its call was wrong. Raises only what a signal handler raises. An
// empty name stands for all calls of a program that could not be built.
void RefuseCollective(const std::string& kind, const std::string& name,
                      int32_t process_set_id, const std::string& why);
// Returns the global rank that has joined last.
int64_t Join(int32_t process_set_id, bool average_over_active);

}  // namespace hvd
