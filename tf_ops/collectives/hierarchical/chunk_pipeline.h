// How the ranks of a host and its wire pass chunks on.
//
// As in collectives/host/chunks.h; beside it
//
//   a rank's kOut = c + 1: "the wire's slot of chunk c has what I bring".
//   the wire's kOut = c + 1: "it holds the result of chunk c".
//
// A rank reads the result of chunk c - kWireLag after it has filled chunk c.
#pragma once

#include <cstdint>

#include "tf_ops/collectives/host/chunks.h"
#include "tf_ops/collectives/phases.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/host_slabs.h"

namespace hvd {

inline constexpr uint32_t kWireLag = 4;
static_assert(kWireLag + 1 < kNumSlots);

// Waits until this rank may write the slots of `chunk`, its own and the wire's.
inline Status WaitForWireSlot(HostSlabs* slabs, uint32_t chunk) {
  return WaitForSlot(slabs, chunk, kWireLag + 1);
}

// The slot of the wire.
inline std::byte* WireSlot(HostSlabs* slabs, uint32_t chunk) {
  return slabs->slot(slabs->size(), chunk);
}

// Calls fill(c) and, later, read(c) for each chunk of a job. fill must post
// kIn and, maybe in a later call, kOut; it is called for `fill_lag` chunks
// behind the last, too.
template <typename Fill, typename Read>
Status RunPipeline(HostSlabs* slabs, uint32_t num_chunks, uint32_t fill_lag,
                   Fill fill, Read read) {
  const uint32_t first = slabs->next_chunk();
  // Not all collectives post it: it must not fall behind by half the range of
  // the numbers.
  slabs->Post(Flag::kOut, first);
  for (uint32_t step = 0; step < num_chunks + kWireLag; ++step) {
    if (step < num_chunks + fill_lag) HVD_RETURN_IF_ERROR(fill(step));
    if (step < kWireLag) continue;
    {
      const ScopedPhase phase(Phase::kWire, 0);
      HVD_RETURN_IF_ERROR(slabs->WaitForWire(first + step - kWireLag + 1));
    }
    read(step - kWireLag);
  }
  slabs->AdvanceChunks(num_chunks);
  return Status::Ok();
}

// As above, where each rank writes what it brings into the wire's slot at once.
template <typename Write, typename Read>
Status RunCopies(HostSlabs* slabs, uint32_t num_chunks, Write write,
                 Read read) {
  const uint32_t first = slabs->next_chunk();
  const auto fill = [&](uint32_t c) -> Status {
    HVD_RETURN_IF_ERROR(WaitForWireSlot(slabs, first + c));
    write(c, WireSlot(slabs, first + c));
    slabs->Post(Flag::kIn, first + c + 1);
    slabs->Post(Flag::kOut, first + c + 1);
    return Status::Ok();
  };
  return RunPipeline(slabs, num_chunks, 0, fill,
                     [&](uint32_t c) { read(c, WireSlot(slabs, first + c)); });
}

}  // namespace hvd
