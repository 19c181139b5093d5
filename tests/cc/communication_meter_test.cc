// The meter: how long collectives ran, and who came last.
#include "tf_ops/observe/communication_meter.h"

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tests/cc/engine_util.h"

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kMs{1};

class Calls {
 public:
  explicit Calls(CommunicationMeter* meter) : meter_(meter) {}

  void Begin(int ms) { Tell(Event::Step::kBegun, ms, false); }
  void End(int ms, bool has_begun = true) {
    Tell(Event::Step::kEnded, ms, has_begun);
  }

 private:
  void Tell(Event::Step step, int ms, bool has_begun) {
    Event event;
    event.request = &request_;
    event.step = step;
    event.has_begun = has_begun;
    event.status = &status_;
    event.time = Clock::time_point() + ms * kMs;
    meter_->OnEvent(event);
  }

  CommunicationMeter* const meter_;
  const Status status_;
  const Request request_ =
      ARequest(CollectiveKind::kAllreduce, "adam/bucket_0");
};

TEST_CASE("time counts once, however many collectives run") {
  CommunicationMeter meter(1);
  Calls calls(&meter);
  calls.Begin(10);
  calls.Begin(12);
  calls.End(15);
  calls.End(16, /*has_begun=*/false);
  calls.End(20);
  calls.Begin(30);
  calls.End(31);
  CHECK(meter.Sums().running_ns == 11'000'000);
  CHECK(meter.Sums().num_steps == 3);
}

TEST_CASE("bytes of broadcasts add up, of all dtypes") {
  CommunicationMeter meter(1);
  Request request = ARequest(CollectiveKind::kBroadcast, "first");
  RequestTensor values, bytes;
  values.dtype = DataType::kFloat32;
  values.shape = {3, 5};
  bytes.dtype = DataType::kUint8;
  bytes.shape = {7};
  request.tensors = {values, bytes};
  Event event;
  event.request = &request;
  event.step = Event::Step::kBegun;
  meter.OnEvent(event);
  meter.OnEvent(event);
  CHECK(meter.Sums().num_broadcast_bytes == 134);
  request.kind = CollectiveKind::kAllreduce;
  meter.OnEvent(event);
  CHECK(meter.Sums().num_broadcast_bytes == 134);
}

TEST_CASE("what ranks train with is told from metrics and logs") {
  Request request = ARequest(CollectiveKind::kAllreduce, "gradient");
  const auto shares = [&request](DataType dtype, int64_t num_values) {
    RequestTensor tensor;
    tensor.dtype = dtype;
    tensor.shape = {num_values};
    request.tensors = {tensor};
    return SharesValues(request);
  };
  CHECK(shares(DataType::kFloat32, 2));
  CHECK(shares(DataType::kFloat8E5m2, 2));
  CHECK(!shares(DataType::kFloat32, 1));
  CHECK(!shares(DataType::kInt64, 8));
  request.name = "MetricAverageCallback/states";
  CHECK(!shares(DataType::kFloat32, 2));
  request.name = "adam/bucket_0";
  CHECK(shares(DataType::kFloat32, 1));
  request.kind = CollectiveKind::kBroadcast;
  request.name = "bias";
  CHECK(shares(DataType::kFloat32, 1));
  CHECK(!shares(DataType::kUint8, 9));
}

TEST_CASE("the coordinator knows who came last, and how late") {
  std::vector<std::shared_ptr<CommunicationMeter>> meters;
  Engines engines;
  for (auto& group : CreateInMemory(3)) {
    meters.push_back(std::make_shared<CommunicationMeter>(3));
    EngineOptions options = QuickOptions();
    options.observers = {meters.back()};
    engines.push_back(Engine::Create(std::move(group), options));
  }
  RunRanks(engines, [](int rank, Engine* engine) {
    for (int i = 0; i < 2; ++i) {
      if (rank == 2) std::this_thread::sleep_for(50 * kMs);
      Run(engine, ARequest(CollectiveKind::kBarrier, "a"), {});
    }
  });
  const CommunicationSums sums = meters[0]->Sums();
  CHECK(sums.num_last[2] == 2);
  CHECK(sums.late_ns[2] >= 60'000'000);
  CHECK(sums.num_last[0] + sums.num_last[1] == 0);
  CHECK(sums.running_ns > 0);
  CHECK(meters[1]->Sums().num_last[2] == 0);
}

}  // namespace
}  // namespace hvd
