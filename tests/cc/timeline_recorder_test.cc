// The timeline: a file of every step of every request.
#include "tf_ops/observe/timeline_recorder.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/engine_util.h"

namespace hvd {
namespace {

constexpr DataType kFloat = DataType::kFloat32;
constexpr int64_t kNumElements = 5000;
constexpr size_t kNumBytes = 4 * kNumElements;

// A file that is gone at the end.
struct TemporaryFile {
  explicit TemporaryFile(int number = 0)
      : path("/tmp/hvd_timeline_test_" + std::to_string(getpid()) + "_" +
             std::to_string(number)) {}
  ~TemporaryFile() { std::remove(path.c_str()); }

  const std::string path;
};

struct Contents {
  std::string header;
  std::vector<std::string> names;
  std::vector<TimelineRecord> records;  // but for texts

  std::vector<TimelineRecord> OfType(TimelineType type) const {
    std::vector<TimelineRecord> found;
    for (const TimelineRecord& record : records) {
      if (record.type == type) found.push_back(record);
    }
    return found;
  }
};

Contents Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Contents contents;
  char bytes[kTimelineRecordBytes];
  while (file.read(bytes, sizeof(bytes))) {
    TimelineText text;
    std::memcpy(&text, bytes, sizeof(text));
    const std::string part(
        text.bytes, std::min<size_t>(text.num_bytes, sizeof(text.bytes)));
    if (text.type == TimelineType::kHeader) {
      contents.header += part;
    } else if (text.type == TimelineType::kName) {
      contents.names.resize(
          std::max<size_t>(contents.names.size(), text.id + 1));
      contents.names[text.id] += part;
    } else {
      contents.records.emplace_back();
      std::memcpy(&contents.records.back(), bytes, sizeof(bytes));
    }
  }
  CHECK(file.gcount() == 0);  // whole records alone
  return contents;
}

Request RequestOf(uint64_t number, const std::string& name) {
  Request request = ARequest(CollectiveKind::kBarrier, name);
  request.number = number;
  return request;
}

void TellAdmitted(TimelineRecorder* recorder, const Request& request) {
  Event event;
  event.request = &request;
  event.time = Clock::now();
  recorder->OnEvent(event);
}

TEST_CASE("a file holds the steps and phases of what a rank ran, in order") {
  const TemporaryFile files[2] = {TemporaryFile(0), TemporaryFile(1)};
  std::vector<std::shared_ptr<TimelineRecorder>> recorders;
  const std::string header(200, 'h');
  {
    Engines engines;
    for (auto& group : CreateInMemory(2)) {
      recorders.push_back(std::make_shared<TimelineRecorder>());
      EngineOptions options = QuickOptions();
      options.observers = {recorders.back()};
      engines.push_back(Engine::Create(std::move(group), options));
    }
    RunRanks(engines, [&](int rank, Engine* engine) {
      TimelineRecorder* const recorder =
          recorders[static_cast<size_t>(rank)].get();
      const auto reduce = [&](const std::string& name) {
        Run(engine, ARequest(CollectiveKind::kAllreduce, name),
            {Fill(kFloat, {kNumElements}, 1)});
      };
      reduce("before");
      REQUIRE_OK(recorder->Start(files[rank].path, header));
      for (int i = 0; i < 3; ++i) reduce("a");
      REQUIRE_OK(recorder->Stop());
      reduce("after");
    });
  }
  for (const TemporaryFile& file : files) {
    const Contents contents = Read(file.path);
    CHECK(contents.header == header);
    REQUIRE(contents.names.size() == 1);
    CHECK(contents.names[0] == "a");
    const auto admitted = contents.OfType(TimelineType::kAdmitted);
    const auto negotiated = contents.OfType(TimelineType::kNegotiated);
    const auto begun = contents.OfType(TimelineType::kBegun);
    const auto ended = contents.OfType(TimelineType::kEnded);
    REQUIRE(admitted.size() == 3);
    REQUIRE(ended.size() >= 3);
    for (size_t i = 0; i < 3; ++i) {
      CHECK(admitted[i].num_bytes == kNumBytes);
      CHECK(admitted[i].dtype == static_cast<uint8_t>(kFloat));
      CHECK(admitted[i].number == negotiated[i].number);
      CHECK(admitted[i].time_ns <= negotiated[i].time_ns);
      CHECK(negotiated[i].collective_id == begun[i].collective_id);
      CHECK(begun[i].time_ns <= ended[i].time_ns);
      CHECK(ended[i].code == 0);
    }
    const auto phases = contents.OfType(TimelineType::kPhase);
    REQUIRE(phases.size() == 6);  // packed and reduced
    for (size_t i = 0; i < phases.size(); ++i) {
      CHECK(phases[i].kind ==
            static_cast<uint8_t>(i % 2 == 0 ? Phase::kPack : Phase::kReduce));
      CHECK(phases[i].collective_id == begun[i / 2].collective_id);
      CHECK(phases[i].num_bytes == kNumBytes);
      CHECK(begun[i / 2].time_ns <= phases[i].time_ns);
      CHECK(phases[i].time_ns <= phases[i].other_ns);
      CHECK(phases[i].other_ns <= ended[i / 2].time_ns);
    }
  }
}

TEST_CASE("what does not fit into the buffer is dropped and counted") {
  const TemporaryFile file;
  TimelineRecorder recorder(8);
  REQUIRE_OK(recorder.Start(file.path, "{}"));
  constexpr uint64_t kNum = 1000;
  for (uint64_t i = 1; i <= kNum; ++i) {
    TellAdmitted(&recorder, RequestOf(i, "one"));
  }
  REQUIRE_OK(recorder.Stop());
  const Contents contents = Read(file.path);
  uint64_t num_dropped = 0;
  for (const auto& one : contents.OfType(TimelineType::kDropped)) {
    num_dropped += one.number;
  }
  const size_t num_there = contents.OfType(TimelineType::kAdmitted).size();
  CHECK(num_there > 0);
  CHECK(num_dropped > 0);
  CHECK(num_there + num_dropped == kNum);
}

TEST_CASE("a name of any length is written once") {
  const TemporaryFile file;
  TimelineRecorder recorder;
  REQUIRE_OK(recorder.Start(file.path, "{}"));
  const std::string name = std::string(1000, 'x') + "end";
  for (uint64_t i = 1; i <= 2; ++i) {
    TellAdmitted(&recorder, RequestOf(i, name));
    TellAdmitted(&recorder, RequestOf(i + 2, "short"));
  }
  REQUIRE_OK(recorder.Stop());
  CHECK(Read(file.path).names == std::vector<std::string>{name, "short"});
}

TEST_CASE("starting twice, and where nothing can be written, is an error") {
  const TemporaryFile file;
  TimelineRecorder recorder;
  CHECK(Contains(recorder.Start("/nowhere/x", "{}").message(),
                 "/nowhere/x: No such file"));
  CHECK(!recorder.is_on());
  REQUIRE_OK(recorder.Stop());
  REQUIRE_OK(recorder.Start(file.path, "{}"));
  CHECK(recorder.Start(file.path, "{}").code() == StatusCode::kInvalidArgument);
  REQUIRE_OK(recorder.Stop());
  REQUIRE_OK(recorder.Start(file.path, "{}"));
  TellAdmitted(&recorder, RequestOf(1, "again"));
  REQUIRE_OK(recorder.Stop());
  CHECK(Read(file.path).names == std::vector<std::string>{"again"});
}

TEST_CASE("it starts and stops while other threads tell events") {
  const TemporaryFile file;
  TimelineRecorder recorder(64);
  std::atomic<bool> must_end{false};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; !must_end.load(); ++i) {
        TellAdmitted(&recorder, RequestOf(4 * i + t, "n" + std::to_string(i)));
        recorder.OnStep(1, 2, std::chrono::nanoseconds(3),
                        std::chrono::nanoseconds(4));
        PhaseEvent phase;
        recorder.OnPhase(phase);
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    REQUIRE_OK(recorder.Start(file.path, "{\"a\": 1}"));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    REQUIRE_OK(recorder.Stop());
    CHECK(Read(file.path).header == "{\"a\": 1}");
  }
  must_end.store(true);
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("the clock is read at first, at the start and at the end") {
  const TemporaryFile file;
  TimelineRecorder recorder;
  const auto tell = [&recorder](int offset) {
    recorder.OnClock(Clock::now(), std::chrono::nanoseconds(offset),
                     std::chrono::nanoseconds(7));
  };
  CHECK(recorder.ClockIsDue(Clock::now()));  // for a job that ends soon
  tell(-1);
  CHECK(!recorder.ClockIsDue(Clock::now() + std::chrono::seconds(61)));
  REQUIRE_OK(recorder.Start(file.path, "{}"));
  CHECK(recorder.ClockIsDue(Clock::now()));
  tell(-2);
  CHECK(!recorder.ClockIsDue(Clock::now()));
  CHECK(recorder.ClockIsDue(Clock::now() + std::chrono::seconds(61)));
  std::thread links([&] {
    while (!recorder.ClockIsDue(Clock::now())) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    tell(-3);
  });
  REQUIRE_OK(recorder.Stop());
  links.join();
  const auto clocks = Read(file.path).OfType(TimelineType::kClock);
  REQUIRE(clocks.size() == 3);
  for (size_t i = 0; i < clocks.size(); ++i) {
    CHECK(clocks[i].other_ns == -1 - static_cast<int64_t>(i));
    CHECK(clocks[i].num_bytes == 7);
  }
  recorder.ForgetClock();
  REQUIRE_OK(recorder.Start(file.path, "{}"));
  REQUIRE_OK(recorder.Stop());
  CHECK(Read(file.path).OfType(TimelineType::kClock).empty());
}

}  // namespace
}  // namespace hvd
