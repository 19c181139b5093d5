// The flight recorder: what became of the last requests.
#include "tf_ops/observe/flight_recorder.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/cc/engine_util.h"
#include "tf_ops/observe/flight_file.h"

namespace hvd {
namespace {

constexpr DataType kFloat = DataType::kFloat32;
using State = FlightRecord::State;
using Recorders = std::vector<std::shared_ptr<FlightRecorder>>;

Engines MakeRecorded(int size, Recorders* recorders) {
  Engines engines;
  for (auto& group : CreateInMemory(size)) {
    recorders->push_back(std::make_shared<FlightRecorder>());
    EngineOptions options = QuickOptions();
    options.observers = {recorders->back()};
    engines.push_back(Engine::Create(std::move(group), options));
  }
  return engines;
}

Request RequestOf(uint64_t number, const std::string& name) {
  Request request = ARequest(CollectiveKind::kBarrier, name);
  request.number = number;
  return request;
}

void Tell(FlightRecorder* recorder, const Request& request, Event::Step step,
          const Status& status = Status()) {
  Event event;
  event.step = step;
  event.request = &request;
  event.status = &status;
  event.time = Clock::now();
  recorder->OnEvent(event);
}

TEST_CASE("each rank has the steps of what it ran") {
  Recorders recorders;
  const Engines engines = MakeRecorded(2, &recorders);
  RunRanks(engines, [](int, Engine* engine) {
    Run(engine, ARequest(CollectiveKind::kAllreduce, "a"),
        {Fill(kFloat, {50}, 1)});
  });
  for (const auto& recorder : recorders) {
    const std::vector<FlightRecord> records = recorder->Records();
    REQUIRE(records.size() == 1);
    const FlightRecord& record = records[0];
    CHECK(record.name_text() == "a");
    CHECK(record.kind == CollectiveKind::kAllreduce);
    CHECK(record.dtype == kFloat);
    CHECK(record.num_bytes == 200);
    CHECK(record.num_tensors == 1);
    CHECK(record.state == State::kDone);
    CHECK(record.collective_id == recorders[0]->Records()[0].collective_id);
    CHECK(record.enqueued <= record.negotiated);
    CHECK(record.negotiated <= record.begun);
    CHECK(record.begun <= record.ended);
  }
}

TEST_CASE("what still waits is kept when newer requests come") {
  FlightRecorder recorder;
  const Request stuck = RequestOf(1, "stuck");
  Tell(&recorder, stuck, Event::Step::kAdmitted);
  for (uint64_t i = 2; i < 2 + 2 * FlightRecorder::kNumRecords; ++i) {
    const Request one = RequestOf(i, "one");
    Tell(&recorder, one, Event::Step::kAdmitted);
    Tell(&recorder, one, Event::Step::kEnded);
  }
  std::vector<FlightRecord> records = recorder.Records();
  REQUIRE(records.size() == 1 + FlightRecorder::kNumRecords);
  CHECK(records[0].name_text() == "stuck");
  CHECK(records[0].state == State::kWaiting);
  CHECK(records[1].number == 2 + FlightRecorder::kNumRecords);

  Tell(&recorder, stuck, Event::Step::kNegotiated);
  CHECK(recorder.Records()[0].state == State::kNegotiated);
  Tell(&recorder, stuck, Event::Step::kEnded, Status::PeerLost("rank 1 died"));
  CHECK(recorder.Records()[0].code == StatusCode::kPeerLost);
}

TEST_CASE("what ended well is forgotten when newer requests come") {
  FlightRecorder recorder;
  const Request late = RequestOf(1, "late");
  Tell(&recorder, late, Event::Step::kAdmitted);
  const Request next = RequestOf(1 + FlightRecorder::kNumRecords, "next");
  Tell(&recorder, next, Event::Step::kAdmitted);
  CHECK(recorder.Records().size() == 2);
  Tell(&recorder, late, Event::Step::kEnded);
  REQUIRE(recorder.Records().size() == 1);
  CHECK(recorder.Records()[0].name_text() == "next");
}

TEST_CASE("a long name keeps its beginning and its end") {
  FlightRecorder recorder;
  const Request request =
      RequestOf(1, "begin" + std::string(1000, 'x') + "end");
  Tell(&recorder, request, Event::Step::kAdmitted);
  const std::string name = recorder.Records()[0].name_text();
  CHECK(name.size() == 120);
  CHECK(name.substr(0, 5) == "begin");
  CHECK(name.substr(name.size() - 3) == "end");
}

TEST_CASE("a file holds a line for the process and one for each request") {
  FlightRecorder recorder;
  const Request request = RequestOf(7, "quote \" and \n end");
  Tell(&recorder, request, Event::Step::kAdmitted);
  const std::string path =
      "/tmp/hvd_flight_test_" + std::to_string(getpid()) + ".jsonl";
  REQUIRE_OK(
      WriteFlightFile(path, {3, 4, "hosta", "a test"}, recorder.Records()));
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  std::remove(path.c_str());
  REQUIRE(lines.size() == 2);
  CHECK(Contains(lines[0], "\"flight_record\": 1, \"rank\": 3, \"size\": 4"));
  CHECK(Contains(lines[0], "\"reason\": \"a test\""));
  CHECK(Contains(lines[1], "\"name\": \"quote \\\" and \\u000a end\""));
  CHECK(Contains(lines[1], "\"state\": \"waiting\", \"enqueued_ns\": "));
  CHECK(!Contains(lines[1], "begun_ns"));

  const Status status = WriteFlightFile("/nowhere/x", {}, {});
  CHECK(Contains(status.message(), "/nowhere/x: No such file"));
}

}  // namespace
}  // namespace hvd
