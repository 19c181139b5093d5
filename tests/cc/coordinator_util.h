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
#include "tf_ops/negotiation/host_coordinator.h"

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

inline RankMessage Ids(RankMessage::Type type, std::vector<uint32_t> ids) {
  RankMessage message;
  message.type = type;
  for (uint32_t id : ids) AppendId(id, &message.ids);
  return message;
}

inline RankMessage Ready(std::vector<uint32_t> ids) {
  return Ids(RankMessage::Type::kReady, std::move(ids));
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
  kApart,    // on hosts of 2, but each for itself
  kLeaders,  // on hosts of 2, each with a HostCoordinator
};
inline constexpr Voices kAllVoices[] = {Voices::kOneHost, Voices::kApart,
                                        Voices::kLeaders};
inline doctest::String toString(Voices voices) {
  const char* const names[] = {"one host", "ranks apart", "leaders"};
  return names[static_cast<int>(voices)];
}

// A coordinator with the ranks' hosts before it. Its functions are those of
// Coordinator, but it takes messages of ranks.
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
    for (int first = 0; voices == Voices::kLeaders && first < size;
         first += 2) {
      std::vector<int> ranks{first};
      if (first + 1 < size) ranks.push_back(first + 1);
      leaders_.push_back(std::make_unique<HostCoordinator>(ranks));
    }
  }

  Status OnMessage(int rank, RankMessage message, Clock::time_point now) {
    if (voices_ == Voices::kOneHost) {
      return coordinator_->OnMessage(rank, message, now);
    }
    if (voices_ == Voices::kApart) {
      message.ranks = {rank};
      return coordinator_->OnMessage(rank / 2, message, now);
    }
    // What waits in a leader is told long before a time of these tests.
    if (now != now_) HVD_RETURN_IF_ERROR(Tell(Clock::time_point::max()));
    now_ = now;
    HVD_RETURN_IF_ERROR(leaders_[static_cast<size_t>(rank / 2)]->OnMessage(
        rank % 2, message, now));
    return Tell(now);
  }

  std::vector<Response> TakeResponses() {
    CHECK_OK(Tell(Clock::time_point::max()));
    std::vector<Response> responses = coordinator_->TakeResponses();
    for (const auto& leader : leaders_) {
      for (const Response& response : responses) leader->OnResponse(response);
    }
    return responses;
  }

  std::vector<std::string> CheckStalls(Clock::time_point now) {
    CHECK_OK(Tell(Clock::time_point::max()));
    return coordinator_->CheckStalls(now);
  }
  bool has_pending() const { return coordinator_->has_pending(); }

 private:
  Status Tell(Clock::time_point until) {
    for (size_t host = 0; host < leaders_.size(); ++host) {
      for (const RankMessage& message : leaders_[host]->TakeMessages(until)) {
        HVD_RETURN_IF_ERROR(
            coordinator_->OnMessage(static_cast<int>(host), message, now_));
      }
    }
    return Status::Ok();
  }

  const Voices voices_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<std::unique_ptr<HostCoordinator>> leaders_;  // by host
  Clock::time_point now_{};  // of the last message
};

// Takes the responses, of which the first is of this kind.
template <typename Kind, typename Speaker>
Kind First(Speaker* c) {
  return std::get<Kind>(c->TakeResponses().at(0));
}

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
