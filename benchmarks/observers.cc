// What it costs that the engine's steps are observed.
//
//   make bench-core && build/bench-core/observers_benchmark
//
// Prints, for each set of observers, the nanoseconds that all four steps of a
// request take, as a median and a minimum over rounds of 1,000 requests. The
// sets take turns within a round.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tf_ops/engine/event_log.h"
#include "tf_ops/observe/communication_meter.h"
#include "tf_ops/observe/flight_recorder.h"
#include "tf_ops/observe/profiler_ranges.h"
#include "tf_ops/observe/timeline_recorder.h"

namespace hvd {
namespace {

constexpr int kNumRequests = 1000;
constexpr int kNumRounds = 300;

using Observers = std::vector<std::shared_ptr<EventObserver>>;

// As the engine: those that wait are told together, each runs by itself.
void Tell(EventLog* log, std::vector<Request>* requests, uint64_t* number) {
  const Status ok;
  const Clock::time_point now = Clock::now();
  for (Request& request : *requests) {
    request.number = ++*number;
    Event event;
    event.request = &request;
    event.time = now;
    log->Tell(event);
    event.step = Event::Step::kNegotiated;
    event.status = &ok;
    if (log->has_readers()) log->Tell(event);
  }
  for (Request& request : *requests) {
    Event event;
    event.request = &request;
    event.collective_id = request.number;
    event.step = Event::Step::kBegun;
    event.is_first = true;
    log->Tell(event);
    event.step = Event::Step::kEnded;
    event.has_begun = true;
    event.status = &ok;
    event.time = {};
    log->Tell(event);
  }
}

int Main() {
  std::vector<Request> requests(kNumRequests);
  for (int i = 0; i < kNumRequests; ++i) {
    Request& request = requests[static_cast<size_t>(i)];
    request.name = "adam/bucket_" + std::to_string(i);
    request.tensors.resize(1);
  }
  const auto flight = std::make_shared<FlightRecorder>();
  const auto meter = std::make_shared<CommunicationMeter>(2);
  const auto ranges = std::make_shared<ProfilerRanges>();
  const auto timeline = std::make_shared<TimelineRecorder>();
  const std::vector<std::pair<const char*, Observers>> sets = {
      {"none", {}},
      {"flight recorder", {flight}},
      {"meter", {meter}},
      {"profilers, off", {ranges}},
      {"timeline, off", {timeline}},
      {"all", {flight, meter, ranges, timeline}},
  };
  std::vector<std::unique_ptr<EventLog>> logs;
  for (const auto& [name, observers] : sets) {
    logs.push_back(std::make_unique<EventLog>(observers));
  }
  std::vector<std::vector<double>> times(sets.size());
  uint64_t number = 0;
  for (int round = 0; round < kNumRounds; ++round) {
    for (size_t i = 0; i < sets.size(); ++i) {
      const Clock::time_point begin = Clock::now();
      Tell(logs[i].get(), &requests, &number);
      const std::chrono::duration<double, std::nano> took =
          Clock::now() - begin;
      times[i].push_back(took.count() / kNumRequests);
    }
  }
  for (size_t i = 0; i < sets.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    std::printf("%-16s median %6.1f  min %6.1f ns a request\n", sets[i].first,
                times[i][kNumRounds / 2], times[i][0]);
  }
  return 0;
}

}  // namespace
}  // namespace hvd

int main() { return hvd::Main(); }
