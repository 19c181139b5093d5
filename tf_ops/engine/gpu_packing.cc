#include "tf_ops/engine/gpu_packing.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/engine/gpu_reduction.h"

namespace hvd {
namespace {

constexpr std::array<Packing, 3> kWays = {Packing::kBatch, Packing::kCopies,
                                          Packing::kNone};
// About the layers of a network: most are small.
constexpr size_t kNumTensors = 64;
constexpr size_t kMostBytes = 64 << 10;  // of a tensor
constexpr int kNumRounds = 3;            // after one to warm up

// Tensors in the second half of the buffer; none: it is too small.
std::vector<GpuTensor> TensorsFor(const GpuLane& lane) {
  const size_t half = lane.fusion_buffer_bytes / 2;
  const size_t num_bytes =
      std::min(kMostBytes, half / kNumTensors / kGpuAlignment * kGpuAlignment);
  std::vector<GpuTensor> tensors;
  if (num_bytes == 0 || num_bytes >= lane.direct_bytes) return tensors;
  std::byte* memory = lane.fusion_buffer + half / kGpuAlignment * kGpuAlignment;
  for (size_t i = 0; i < kNumTensors; ++i) {
    tensors.push_back({memory, memory, num_bytes / sizeof(float), num_bytes});
    memory += num_bytes;
  }
  return tensors;
}

Status Await(const GpuEvent& event, const Communicator::Look& look) {
  bool is_over = false;
  while (true) {
    HVD_RETURN_IF_ERROR(event.Query(&is_over));
    if (is_over) return Status::Ok();
    HVD_RETURN_IF_ERROR(look());
    std::this_thread::yield();
  }
}

Status TimeOne(const GpuLane& lane, const std::vector<GpuTensor>& tensors,
               double* seconds) {
  const Clock::time_point begin = Clock::now();
  HVD_RETURN_IF_ERROR(AllreduceFused(lane, GpuReduction(), tensors));
  std::shared_ptr<GpuEvent> end;
  HVD_RETURN_IF_ERROR(lane.gpu->Record(lane.stream, &end));
  HVD_RETURN_IF_ERROR(Await(*end, lane.look));
  *seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return Status::Ok();
}

}  // namespace

const char* PackingName(Packing packing) {
  switch (packing) {
    case Packing::kBatch:
      return "batch";
    case Packing::kCopies:
      return "copies";
    case Packing::kNone:
      return "none";
  }
  return "unknown";
}

std::optional<Packing> PackingOf(const std::string& name) {
  for (Packing way : kWays) {
    if (name == PackingName(way)) return way;
  }
  return std::nullopt;
}

Status MeasurePacking(const GpuLane& lane, Collectives* collectives,
                      Packing* packing, std::string* times) {
  const std::vector<GpuTensor> tensors = TensorsFor(lane);
  if (tensors.empty() || lane.size == 1) return Status::Ok();
  GpuLane probe = lane;
  probe.fusion_buffer_bytes /= 2;
  std::array<double, kWays.size()> best;
  best.fill(std::numeric_limits<double>::max());
  for (int round = 0; round <= kNumRounds; ++round) {
    for (size_t i = 0; i < kWays.size(); ++i) {
      probe.packing = kWays[i];
      double seconds = 0;
      HVD_RETURN_IF_ERROR(TimeOne(probe, tensors, &seconds));
      if (round > 0) best[i] = std::min(best[i], seconds);
    }
  }
  ReduceSpec slowest;
  slowest.dtype = DataType::kFloat64;
  slowest.op = ReduceOp::kMax;
  slowest.num_ranks = lane.size;
  HVD_RETURN_IF_ERROR(collectives->Allreduce(
      TensorList({{best.data(), best.data(), sizeof(best)}}), slowest));
  for (size_t i = 0; i < kWays.size(); ++i) {
    *times += (i == 0 ? "" : ", ") + std::string(PackingName(kWays[i])) + " " +
              std::to_string(static_cast<int64_t>(best[i] * 1e6)) + " us";
  }
  *packing = kWays[static_cast<size_t>(
      std::min_element(best.begin(), best.end()) - best.begin())];
  return Status::Ok();
}

}  // namespace hvd
