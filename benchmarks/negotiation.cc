// Times the negotiation of a training step, without data: 160 requests that all
// ranks know.
//
//   negotiation HOSTS RANKS_A_HOST ROUNDS
//
// One thread plays all: rank 0, the leader of host 1, and what the others say.
// Timed is what rank 0 does in a round (reads messages, decides, writes the
// answer for all) and what the leader does (reads those of its ranks, tells
// rank 0, passes the answer on). Prints a JSON line with medians and minima, in
// ms.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/cc/rank_processes.h"
#include "tf_ops/host/in_memory/in_memory.h"
#include "tf_ops/negotiation/negotiator.h"
#include "tf_ops/wire/loopback/loopback_links.h"

namespace hvd {
namespace {

constexpr int kNumRequests = 160;

using Groups = std::vector<std::unique_ptr<HostGroup>>;  // by local rank

RankMessage NewRequest(int i) {
  RankMessage message;
  message.name = "model/layer_" + std::to_string(i) + "/kernel";
  message.params.tensors = {{DataType::kFloat32, {1000}}};
  return message;
}

// Runs `work` and adds its time to `*ms`.
template <typename Work>
void Time(double* ms, const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double, std::milli> time =
      std::chrono::steady_clock::now() - begin;
  *ms += time.count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Benchmark {
 public:
  Benchmark(int num_hosts, int ranks_a_host)
      : num_hosts_(num_hosts), ranks_a_host_(ranks_a_host) {
    CoordinatorOptions options;
    options.global_ranks.resize(static_cast<size_t>(num_hosts * ranks_a_host));
    std::iota(options.global_ranks.begin(), options.global_ranks.end(), 0);
    for (int rank = 0; num_hosts > 1 && rank < num_hosts * ranks_a_host;
         ++rank) {
      options.hosts.push_back(rank / ranks_a_host);
    }
    if (num_hosts > 1) links_ = CreateLoopbackLinks(num_hosts, {});
    first_host_ = CreateInMemory(ranks_a_host);
    first_ = std::make_unique<Negotiator>(
        first_host_[0]->control(), num_hosts > 1 ? links_[0].get() : nullptr,
        /*rank=*/0, options);
    if (num_hosts == 1) return;
    second_host_ = CreateInMemory(ranks_a_host);
    leader_ = std::make_unique<Negotiator>(
        second_host_[0]->control(), links_[1].get(), ranks_a_host, options);
  }

  // The ranks learn the requests.
  void Begin() {
    for (int i = 0; i < kNumRequests; ++i) {
      for (const Response& response : RunRound(NewRequest(i))) {
        for (const ResponseItem& item : std::get<Execution>(response).items) {
          AppendId(item.new_id, &ready_.ids);
        }
      }
    }
    OrDie(NumIds(ready_.ids) == kNumRequests, "all requests are known");
    ready_.type = RankMessage::Type::kReady;
    first_ms_.clear();
    leader_ms_.clear();
  }

  void RunRound() {
    size_t num_run = 0;
    for (const Response& response : RunRound(ready_)) {
      num_run += std::get<Execution>(response).items.size();
    }
    OrDie(num_run == kNumRequests, "all requests run");
  }

  void Print() const {
    std::printf(
        "{\"benchmark\": \"negotiation\", \"requests\": %d, \"hosts\": %d, "
        "\"ranks_a_host\": %d, \"rounds\": %zu, \"rank_0_ms\": %.4f, "
        "\"rank_0_min_ms\": %.4f",
        kNumRequests, num_hosts_, ranks_a_host_, first_ms_.size(),
        Median(first_ms_),
        *std::min_element(first_ms_.begin(), first_ms_.end()));
    if (num_hosts_ > 1) {
      std::printf(", \"leader_ms\": %.4f, \"leader_min_ms\": %.4f",
                  Median(leader_ms_),
                  *std::min_element(leader_ms_.begin(), leader_ms_.end()));
    }
    std::puts("}");
  }

 private:
  // All ranks say `message`. Returns what rank 0 has to do.
  std::vector<Response> RunRound(const RankMessage& message) {
    std::vector<uint8_t> bytes;
    Encode(message, &bytes);
    SayOfRanks(bytes, &first_host_);
    SayOfRanks(bytes, &second_host_);
    for (int host = 2; host < num_hosts_; ++host) {
      links_[static_cast<size_t>(host)]->Send(0, bytes);
      OrDie(links_[static_cast<size_t>(host)]->Flush());
    }
    std::vector<Response> responses, of_leader;
    double first_ms = 0, leader_ms = 0;
    if (leader_ != nullptr) {
      Time(&leader_ms, [&] {
        OrDie(leader_->Say(message));
        OrDie(leader_->Exchange(&of_leader));
      });
    }
    Time(&first_ms, [&] {
      OrDie(first_->Say(message));
      OrDie(first_->Exchange(&responses));
    });
    if (leader_ != nullptr) {
      Time(&leader_ms, [&] { OrDie(leader_->Exchange(&of_leader)); });
      OrDie(of_leader.size() == responses.size(), "the leader hears all");
    }
    first_ms_.push_back(first_ms);
    leader_ms_.push_back(leader_ms);
    HearOfRanks(&first_host_);
    HearOfRanks(&second_host_);
    for (int host = 2; host < num_hosts_; ++host) {
      bool received = false;
      OrDie(links_[static_cast<size_t>(host)]->Receive(0, &heard_, &received));
      OrDie(received, "each host hears the answer");
    }
    heard_.clear();
    return responses;
  }

  void SayOfRanks(const std::vector<uint8_t>& bytes, Groups* groups) {
    for (size_t i = 1; i < groups->size(); ++i) {
      (*groups)[i]->control()->Send(0, bytes);
      OrDie((*groups)[i]->control()->Flush());
    }
  }

  void HearOfRanks(Groups* groups) {
    for (size_t i = 1; i < groups->size(); ++i) {
      bool received = false;
      OrDie((*groups)[i]->control()->Receive(0, &heard_, &received));
      OrDie(received, "each rank hears the answer");
    }
  }

  const int num_hosts_;
  const int ranks_a_host_;
  std::vector<std::unique_ptr<ControlLinks>> links_;  // by host
  Groups first_host_, second_host_;
  std::unique_ptr<Negotiator> first_;   // of rank 0
  std::unique_ptr<Negotiator> leader_;  // of host 1, if there are several
  RankMessage ready_;
  std::vector<uint8_t> heard_;
  std::vector<double> first_ms_, leader_ms_;  // by round
};

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "Usage: %s HOSTS RANKS_A_HOST ROUNDS\n", argv[0]);
    return 2;
  }
  const int num_hosts = std::atoi(argv[1]);
  const int ranks_a_host = std::atoi(argv[2]);
  const int rounds = std::atoi(argv[3]);
  hvd::OrDie(num_hosts > 0 && ranks_a_host > 0 && rounds > 0, "all above 0");
  hvd::Benchmark benchmark(num_hosts, ranks_a_host);
  benchmark.Begin();
  for (int round = 0; round < rounds; ++round) benchmark.RunRound();
  benchmark.Print();
  return 0;
}
