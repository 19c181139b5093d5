#include "tf_ops/observe/flight_recorder.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "tf_ops/negotiation/tensor_rows.h"
#include "tf_ops/observe/step_names.h"

namespace hvd {
namespace {

constexpr size_t kMostOlder = 4096;
constexpr uint64_t kNumAhead = 4;  // requests, mostly submitted in a row

// Of a long name the ends differ: "...block_4/conv_2/kernel".
void SetName(const std::string& name, FlightRecord* record) {
  const size_t space = record->name.size();
  record->name_size = static_cast<uint8_t>(std::min(name.size(), space));
  if (name.size() <= space) {
    std::memcpy(record->name.data(), name.data(), name.size());
    return;
  }
  constexpr char kGap[] = "...";
  constexpr size_t kGapSize = sizeof(kGap) - 1;
  const size_t head = space / 4;
  const size_t tail = space - head - kGapSize;
  std::memcpy(record->name.data(), name.data(), head);
  std::memcpy(record->name.data() + head, kGap, kGapSize);
  std::memcpy(record->name.data() + head + kGapSize,
              name.data() + name.size() - tail, tail);
}

void SetShape(const Request& request, FlightRecord* record) {
  record->num_dimensions = 0;
  if (request.tensors.empty()) return;
  const Shape& shape = request.tensors[0].shape;
  record->num_dimensions =
      static_cast<uint8_t>(std::min<size_t>(shape.size(), UINT8_MAX));
  std::copy_n(shape.begin(), std::min(shape.size(), record->shape.size()),
              record->shape.begin());
}

// Leaves the rest of an older name where it was.
void SetRecord(const Event& event, FlightRecord* record) {
  const Request& request = *event.request;
  record->number = request.number;
  record->collective_id = 0;
  record->num_bytes = NumBytes(request);
  record->enqueued = event.time;
  record->negotiated = record->begun = record->ended = {};
  record->late_by = {};
  record->last_rank = -1;
  record->process_set_id = request.process_set_id;
  record->num_tensors = static_cast<uint32_t>(request.tensors.size());
  record->kind = request.kind;
  record->op = request.op;
  record->dtype =
      request.tensors.empty() ? DataType::kFloat32 : request.tensors[0].dtype;
  record->state = FlightRecord::State::kWaiting;
  record->code = StatusCode::kOk;
  record->is_on_gpu = request.gpu.ordinal >= 0;
  SetShape(request, record);
  SetName(request.name, record);
}

}  // namespace

void FlightRecorder::Slot::Lock() const {
  while (is_locked.exchange(true, std::memory_order_acquire)) CpuPause();
}

void FlightRecorder::OnEvent(const Event& event) {
  if (event.is_neutral) return;
  Prefetch(event.request->number + kNumAhead);
  if (event.step == Event::Step::kAdmitted || event.is_refused) {
    Begin(event);
  } else {
    Slot& slot = slots_[event.request->number % kNumRecords];
    slot.Lock();
    const bool is_here = slot.record.number == event.request->number;
    if (is_here) Update(event, &slot.record);
    slot.Unlock();
    if (!is_here) {
      const MutexLock lock(&mu_);
      const auto found = older_.find(event.request->number);
      if (found != older_.end()) {
        Update(event, &found->second);
        if (found->second.state == FlightRecord::State::kDone) {
          older_.erase(found);
        }
      }
    }
  }
  if (event.step != Event::Step::kEnded || event.status == nullptr) return;
  if (event.status->ok()) {
    if (IsOfStep(event.request->name)) {
      num_steps_.fetch_add(1, std::memory_order_relaxed);
    }
  } else if (failed_ != nullptr &&
             event.status->code() != StatusCode::kShutdown) {
    failed_();
  }
}

// A slot is seldom in the nearest cache: without this, most of what recording
// costs is the wait for it.
void FlightRecorder::Prefetch(uint64_t number) const {
  const auto* slot =
      reinterpret_cast<const char*>(&slots_[number % kNumRecords]);
  for (size_t i = 0; i < sizeof(Slot); i += alignof(Slot)) {
    __builtin_prefetch(slot + i, /*rw=*/1);
  }
}

void FlightRecorder::Begin(const Event& event) {
  Slot& slot = slots_[event.request->number % kNumRecords];
  std::optional<FlightRecord> unfinished;
  slot.Lock();
  if (slot.record.number != 0 &&
      slot.record.state != FlightRecord::State::kDone) {
    unfinished = slot.record;
  }
  SetRecord(event, &slot.record);
  if (event.is_refused) Update(event, &slot.record);
  slot.Unlock();
  if (!unfinished) return;
  const MutexLock lock(&mu_);
  if (older_.size() < kMostOlder) older_[unfinished->number] = *unfinished;
}

void FlightRecorder::Update(const Event& event, FlightRecord* record) {
  using State = FlightRecord::State;
  if (event.collective_id != 0) record->collective_id = event.collective_id;
  switch (event.step) {
    case Event::Step::kAdmitted:
      return;
    case Event::Step::kNegotiated:
      record->negotiated = event.time;
      record->state = State::kNegotiated;
      record->last_rank = event.last_rank;
      record->late_by = event.late_by;
      return;
    case Event::Step::kBegun:
      record->begun = event.time;
      record->state = State::kRunning;
      return;
    case Event::Step::kEnded:
      record->ended = event.time;
      record->code = event.status->code();
      record->state = event.status->ok() ? State::kDone : State::kFailed;
      return;
  }
}

std::vector<FlightRecord> FlightRecorder::Records() const {
  std::vector<FlightRecord> records;
  {
    const MutexLock lock(&mu_);
    for (const auto& [number, record] : older_) records.push_back(record);
  }
  for (const Slot& slot : slots_) {
    slot.Lock();
    const FlightRecord record = slot.record;
    slot.Unlock();
    if (record.number != 0) records.push_back(record);
  }
  std::sort(records.begin(), records.end(),
            [](const FlightRecord& a, const FlightRecord& b) {
              return a.number < b.number;
            });
  return records;
}

}  // namespace hvd
