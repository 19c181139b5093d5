#include "tf_ops/observe/timeline_recorder.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tf_ops/common/threads.h"
#include "tf_ops/negotiation/tensor_rows.h"

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kBetweenWrites{100};
constexpr std::chrono::seconds kBetweenClocks{60};
// For the last reading of the clock, at the end.
constexpr std::chrono::milliseconds kForLastClock{300};
// Names beyond these are written each time: programs may number theirs.
constexpr size_t kMostNames = 1 << 16;

size_t NumParts(const std::string& text) {
  return (text.size() + TimelineText::kMostBytes - 1) /
         TimelineText::kMostBytes;
}

TimelineType TypeOf(Event::Step step) {
  switch (step) {
    case Event::Step::kAdmitted:
      return TimelineType::kAdmitted;
    case Event::Step::kNegotiated:
      return TimelineType::kNegotiated;
    case Event::Step::kBegun:
      return TimelineType::kBegun;
    case Event::Step::kEnded:
      return TimelineType::kEnded;
  }
  return TimelineType::kEnded;
}

TimelineRecord RecordOf(const Event& event, TimelineType type) {
  const Request& request = *event.request;
  TimelineRecord record;
  record.type = type;
  record.process_set = request.process_set_id;
  record.number = request.number;
  record.time_ns = Nanoseconds(event.time);
  record.collective_id = event.collective_id;
  if (type == TimelineType::kAdmitted) {
    record.kind = static_cast<uint8_t>(request.kind);
    record.op = static_cast<uint8_t>(request.op);
    record.num_bytes = NumBytes(request);
    record.num_tensors = static_cast<uint32_t>(request.tensors.size());
    record.dtype = static_cast<uint8_t>(request.tensors.empty()
                                            ? DataType::kFloat32
                                            : request.tensors[0].dtype);
    record.is_on_gpu = request.gpu.ordinal >= 0;
  } else if (type == TimelineType::kNegotiated) {
    record.last_rank = event.last_rank;
    record.other_ns = event.late_by.count();
  }
  if (event.status != nullptr) {
    record.code = static_cast<uint8_t>(event.status->code());
  }
  return record;
}

}  // namespace

TimelineRecorder::~TimelineRecorder() { (void)Stop(/*reads_clock=*/false); }

// Its pages are there already, so that no event waits for the kernel.
std::vector<TimelineRecorder::Bytes> TimelineRecorder::Buffer(
    size_t num_records) {
  std::vector<Bytes> records(num_records);
  records.clear();
  return records;
}

Status TimelineRecorder::Start(const std::string& path,
                               const std::string& header) {
  const MutexLock control(&control_mu_);
  if (thread_.joinable()) {
    return Status::InvalidArgument("a timeline is being recorded already");
  }
  file_ =
      Fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file_.is_open()) {
    return Status::InvalidArgument("the timeline cannot be written to " + path +
                                   ": " + std::strerror(errno));
  }
  written_ = Status::Ok();
  {
    const MutexLock lock(&mu_);
    records_ = Buffer(std::max(num_records_, NumParts(header)));
    PushText(TimelineType::kHeader, 0, header);
    names_.clear();
    num_names_ = 0;
    num_dropped_ = 0;
    must_end_ = false;
    clock_is_due_ = true;
    if (num_clocks_ > 0) Push(last_clock_);
  }
  thread_ = ThreadWithoutSignals([this] { Serve(); });
  is_on_.store(true);
  return Status::Ok();
}

Status TimelineRecorder::Stop(bool reads_clock) {
  const MutexLock control(&control_mu_);
  if (!thread_.joinable()) return Status::Ok();
  if (reads_clock) WaitForLastClock();
  is_on_.store(false);
  {
    const MutexLock lock(&mu_);
    must_end_ = true;
    has_news_.NotifyAll();
  }
  thread_.join();
  file_ = Fd();
  return written_;
}

void TimelineRecorder::WaitForLastClock() {
  const Clock::time_point end = Clock::now() + kForLastClock;
  const MutexLock lock(&mu_);
  if (!has_clock_) return;
  clock_is_due_ = true;
  const uint64_t before = num_clocks_;
  while (num_clocks_ == before) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - Clock::now());
    if (left.count() <= 0) return;
    has_news_.WaitFor(&mu_, left);
  }
}

void TimelineRecorder::OnEvent(const Event& event) {
  if (!is_on() || event.is_neutral) return;
  if (event.step != Event::Step::kAdmitted && !event.is_refused) {
    return Append(RecordOf(event, TypeOf(event.step)));
  }
  TimelineRecord record = RecordOf(event, TimelineType::kAdmitted);
  const MutexLock lock(&mu_);
  if (must_end_) return;
  if (!FindName(event.request->name, &record.name)) {
    ++num_dropped_;
    return;
  }
  Push(record);
  if (event.is_refused) Push(RecordOf(event, TimelineType::kEnded));
}

void TimelineRecorder::OnPhase(const PhaseEvent& event) {
  if (!is_on()) return;
  TimelineRecord record;
  record.type = TimelineType::kPhase;
  record.kind = static_cast<uint8_t>(event.phase);
  record.process_set = event.process_set_id;
  record.time_ns = Nanoseconds(event.begin);
  record.other_ns = Nanoseconds(event.end);
  record.collective_id = event.collective_id;
  record.num_bytes = event.num_bytes;
  Append(record);
}

void TimelineRecorder::OnStep(int64_t step, int32_t epoch,
                              std::chrono::nanoseconds begin,
                              std::chrono::nanoseconds end) {
  if (!is_on()) return;
  TimelineRecord record;
  record.type = TimelineType::kStep;
  record.number = static_cast<uint64_t>(step);
  record.process_set = epoch;
  record.time_ns = begin.count();
  record.other_ns = end.count();
  Append(record);
}

bool TimelineRecorder::ClockIsDue(Clock::time_point now) {
  const MutexLock lock(&mu_);
  const bool is_first = !std::exchange(has_clock_, true);
  if (!is_first && (must_end_ || (!clock_is_due_ && now < next_clock_))) {
    return false;
  }
  clock_is_due_ = false;
  next_clock_ = now + kBetweenClocks;
  return true;
}

void TimelineRecorder::OnClock(Clock::time_point at,
                               std::chrono::nanoseconds offset,
                               std::chrono::nanoseconds error) {
  TimelineRecord record;
  record.type = TimelineType::kClock;
  record.time_ns = Nanoseconds(at);
  record.other_ns = offset.count();
  record.num_bytes = static_cast<uint64_t>(error.count());
  const MutexLock lock(&mu_);
  if (!must_end_) Push(record);
  last_clock_ = record;
  ++num_clocks_;
  has_news_.NotifyAll();
}

void TimelineRecorder::ForgetClock() {
  const MutexLock lock(&mu_);
  has_clock_ = false;
  num_clocks_ = 0;
}

void TimelineRecorder::Append(const TimelineRecord& record) {
  const MutexLock lock(&mu_);
  if (!must_end_) Push(record);
}

bool TimelineRecorder::HasRoom(size_t num_records) {
  return records_.size() + num_records <= num_records_;
}

void TimelineRecorder::Push(const TimelineRecord& record) {
  if (!HasRoom(1)) {
    ++num_dropped_;
    return;
  }
  records_.emplace_back();
  std::memcpy(records_.back().data(), &record, sizeof(record));
  if (records_.size() == num_records_ / 2) has_news_.NotifyAll();
}

void TimelineRecorder::PushText(TimelineType type, uint32_t id,
                                const std::string& text) {
  for (size_t begin = 0; begin < text.size();
       begin += TimelineText::kMostBytes) {
    TimelineText part;
    part.type = type;
    part.id = id;
    part.num_bytes = static_cast<uint8_t>(
        std::min(TimelineText::kMostBytes, text.size() - begin));
    std::memcpy(part.bytes, text.data() + begin, part.num_bytes);
    records_.emplace_back();
    std::memcpy(records_.back().data(), &part, sizeof(part));
  }
}

bool TimelineRecorder::FindName(const std::string& name, uint32_t* id) {
  const auto found = names_.find(name);
  if (found != names_.end()) {
    *id = found->second;
    return true;
  }
  if (!HasRoom(NumParts(name) + 1)) return false;
  *id = num_names_++;
  if (names_.size() < kMostNames) names_.emplace(name, *id);
  PushText(TimelineType::kName, *id, name);
  return true;
}

void TimelineRecorder::Serve() {
  (void)prctl(PR_SET_NAME, "hvd_timeline");
  std::vector<Bytes> records = Buffer(num_records_);
  bool must_end = false;
  while (!must_end) {
    uint64_t num_dropped = 0;
    records.clear();
    {
      const MutexLock lock(&mu_);
      if (!must_end_ && HasRoom(num_records_ / 2)) {
        has_news_.WaitFor(&mu_, kBetweenWrites);
      }
      std::swap(records, records_);
      num_dropped = std::exchange(num_dropped_, 0);
      must_end = must_end_;
    }
    if (num_dropped > 0) {
      TimelineRecord record;
      record.type = TimelineType::kDropped;
      record.number = num_dropped;
      record.time_ns = Nanoseconds(Clock::now());
      records.emplace_back();
      std::memcpy(records.back().data(), &record, sizeof(record));
    }
    Write(records);
  }
  const MutexLock lock(&mu_);
  records_ = {};  // the memory, too
}

void TimelineRecorder::Write(const std::vector<Bytes>& records) {
  const char* next = reinterpret_cast<const char*>(records.data());
  size_t left = records.size() * kTimelineRecordBytes;
  while (left > 0 && written_.ok()) {
    const ssize_t count = write(file_.get(), next, left);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      written_ = Status::Internal(std::string("the timeline ends early: ") +
                                  std::strerror(errno));
      return;
    }
    next += count;
    left -= static_cast<size_t>(count);
  }
}

}  // namespace hvd
