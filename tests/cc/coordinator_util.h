// Times and messages of ranks, and how they reach the coordinator, for tests of
// the coordinator alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/negotiation/coordinator.h"

namespace hvd {

inline const Clock::time_point kStart{std::chrono::seconds(1000)};

inline Clock::time_point After(double seconds) {
  return kStart +
         std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

inline RankMessage ACall(const std::string& name, Shape shape = {2}) {
  RankMessage message;
  message.name = name;
  message.params.tensors = {{DataType::kFloat32, std::move(shape)}};
  return message;
}

// A set of global ranks 3, 5 and 8, which messages name.
inline CoordinatorOptions SetOptions() {
  CoordinatorOptions options;
  options.global_ranks = {3, 5, 8};
  return options;
}

// How the ranks speak to the coordinator.
enum class Voices {
  kOneHost,  // each for itself
  kApart,    // on hosts of 2, each for itself
};
inline constexpr Voices kAllVoices[] = {Voices::kOneHost, Voices::kApart};
inline doctest::String toString(Voices voices) {
  const char* const names[] = {"one host", "ranks apart"};
  return names[static_cast<int>(voices)];
}

// A coordinator. Its functions are those of Coordinator, but it takes messages
// of ranks.
class Negotiation {
 public:
  Negotiation(Voices voices, int size, CoordinatorOptions options = {})
      : voices_(voices) {
    if (voices != Voices::kOneHost) {
      for (int rank = 0; rank < size; ++rank) {
        options.hosts.push_back(rank / 2);
      }
    }
    coordinator_ = std::make_unique<Coordinator>(size, options);
  }

  Status OnMessage(int rank, RankMessage message, Clock::time_point now) {
    if (voices_ == Voices::kOneHost) {
      return coordinator_->OnMessage(rank, message, now);
    }
    message.ranks = {rank};
    return coordinator_->OnMessage(rank / 2, message, now);
  }

  std::vector<Response> TakeResponses() {
    return coordinator_->TakeResponses();
  }

  std::vector<std::string> CheckStalls(Clock::time_point now) {
    return coordinator_->CheckStalls(now);
  }
  bool has_pending() const { return coordinator_->has_pending(); }

 private:
  const Voices voices_;
  std::unique_ptr<Coordinator> coordinator_;
};

// A test that runs with all kinds of `voices`.
#define VOICES_TEST_CASE(name) \
  HVD_VOICES_TEST_CASE(DOCTEST_ANONYMOUS(TestVoices), name)
#define HVD_VOICES_TEST_CASE(function, name) \
  void function(Voices voices);              \
  TEST_CASE(name) {                          \
    for (Voices voices : kAllVoices) {       \
      CAPTURE(voices);                       \
      function(voices);                      \
    }                                        \
  }                                          \
  void function(Voices voices)

}  // namespace hvd
