// Who is silent, by a clock of the test's.
#include "tf_ops/wire/tcp/silence.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tests/cc/test_util.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

// Three hosts with 2, 1 and 2 ranks; lost after 10 s, a warning after 4.
SilenceOptions OptionsOf(int host) {
  SilenceOptions options;
  options.host = host;
  options.leaders = {"rank 0", "rank 2", "rank 3"};
  options.hosts = {"host a", "host b", "host c"};
  options.job_ranks = {{0, 1}, {2}, {3, 4}};
  options.warning = milliseconds(4000);
  return options;
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Watch {
 public:
  explicit Watch(const SilenceOptions& options)
      : silence_(options,
                 options.host == 0 ? std::vector<bool>{false, true, true}
                                   : std::vector<bool>{true, false, false},
                 now_) {}

  void Wait(int ms) { now_ += milliseconds(ms); }
  void Hear(size_t host) { silence_.Hear(host, now_); }
  std::optional<Silence::Finding> Look(size_t host) {
    return silence_.Look(host, now_);
  }
  Silence* silence() { return &silence_; }

 private:
  Clock::time_point now_ = Clock::now();
  Silence silence_;
};

TEST_CASE("a silent host is warned of once, and again after it has spoken") {
  Watch watch(OptionsOf(0));
  watch.Wait(3999);
  CHECK(!watch.Look(1).has_value());
  for (int round = 0; round < 2; ++round) {
    watch.Wait(4000);
    const auto warning = watch.Look(1);
    REQUIRE(warning.has_value());
    CHECK(!warning->is_lost);
    CHECK(Has(warning->text, "host b is silent"));
    CHECK(Has(warning->text, "rank 2 speaks for it"));
    watch.Wait(1000);
    CHECK(!watch.Look(1).has_value());
    watch.Hear(1);
    CHECK(!watch.Look(1).has_value());
  }
}

TEST_CASE("what ended in peace, is lost or never spoke is not awaited") {
  Watch watch(OptionsOf(0));
  watch.silence()->End(1);
  watch.silence()->Lose(2);
  watch.Wait(100000);
  CHECK(!watch.Look(0).has_value());  // this host
  CHECK(!watch.Look(2).has_value());
  const auto ended = watch.Look(1);
  REQUIRE(ended.has_value());  // its link is still open
  CHECK(!ended->is_lost);
}

TEST_CASE("a host that is silent for the timeout is lost, once") {
  Watch watch(OptionsOf(0));
  watch.Wait(10000);
  watch.Hear(2);
  CHECK(!watch.Look(1)->is_lost);
  watch.Wait(1);
  const auto loss = watch.Look(1);
  REQUIRE(loss.has_value());
  CHECK(loss->is_lost);
  CHECK(!loss->is_minority);
  CHECK(Has(loss->text, "no heartbeat for 10 s (HVD_HEARTBEAT_TIMEOUT)"));
  CHECK(Has(loss->text, "This side holds 4 of 5 ranks"));
  CHECK(!watch.Look(1).has_value());
}

TEST_CASE("the side with fewer ranks ends") {
  // All others: host c has been silent for half of the timeout, too.
  Watch first(OptionsOf(0));
  first.Wait(4000);
  first.Hear(2);
  first.Wait(6001);
  const auto of_first = first.Look(1);
  CHECK(of_first->is_minority);
  CHECK(Has(of_first->text, "holds 2 of 5 ranks, so it ends and writes"));

  // Without host 0 a host reaches nobody.
  Watch last(OptionsOf(2));
  last.Wait(10001);
  const auto of_last = last.Look(0);
  CHECK(of_last->is_lost);
  CHECK(of_last->is_minority);
}

TEST_CASE("the links of a process set wait for those of the job") {
  SilenceOptions options = OptionsOf(0);
  options.job_ranks.clear();
  options.warning = milliseconds(0);
  Watch watch(options);
  watch.Wait(15000);
  CHECK(!watch.Look(1).has_value());
  watch.Wait(1);
  const auto loss = watch.Look(1);
  CHECK(loss->is_lost);
  CHECK(!loss->is_minority);
  CHECK(!Has(loss->text, "ranks"));

  options.timeout = milliseconds(0);
  Watch patient(options);
  patient.Wait(1000000);
  CHECK(!patient.Look(1).has_value());
}

}  // namespace
}  // namespace hvd
