#include "tf_ops/wire/tcp/silence.h"

#include <utility>

#include "tf_ops/common/log.h"
#include "tf_ops/common/types.h"
#include "tf_ops/wire/majority.h"

namespace hvd {

Silence::Silence(const SilenceOptions& options,
                 const std::vector<bool>& is_expected, Clock::time_point now)
    : options_(options) {
  for (bool expected : is_expected) {
    hosts_.push_back(Host{expected, false, false, now});
  }
}

void Silence::Hear(size_t host, Clock::time_point now) {
  hosts_[host].last_heard = now;
}

void Silence::End(size_t host) { hosts_[host].has_ended = true; }

void Silence::Lose(size_t host) { hosts_[host].is_expected = false; }

std::optional<Silence::Finding> Silence::Look(size_t host,
                                              Clock::time_point now) {
  const Host& it = hosts_[host];
  if (!it.is_expected) return std::nullopt;
  const Clock::duration silence = now - it.last_heard;
  if (options_.timeout.count() <= 0 || it.has_ended || silence <= Patience()) {
    return Warn(host, silence);
  }
  Finding loss = Loss(host, now);
  Lose(host);
  return loss;
}

// The links of the job, which hear the same hosts, tell first: only they know
// how many ranks each side holds.
std::chrono::milliseconds Silence::Patience() const {
  return options_.job_ranks.empty() ? options_.timeout * 3 / 2
                                    : options_.timeout;
}

std::optional<Silence::Finding> Silence::Warn(size_t host,
                                              Clock::duration silence) {
  const bool is_due =
      options_.warning.count() > 0 && silence >= options_.warning;
  if (std::exchange(hosts_[host].has_warned, is_due) || !is_due) {
    return std::nullopt;
  }
  return Finding{options_.hosts[host] + " is silent: no heartbeat for " +
                 SecondsToString(silence) + ", since " + TimeOfDay(silence) +
                 "; " + options_.leaders[host] + " speaks for it"};
}

Silence::Finding Silence::Loss(size_t host, Clock::time_point now) const {
  Finding loss{options_.hosts[host] + " is silent: no heartbeat for " +
                   SecondsToString(options_.timeout) +
                   " (HVD_HEARTBEAT_TIMEOUT). Is the host up, and the "
                   "network?",
               /*is_lost=*/true};
  if (options_.job_ranks.empty()) return loss;
  const std::vector<int> lost = RanksSilentAt(now);
  size_t size = 0;
  for (const std::vector<int>& ranks : options_.job_ranks) {
    size += ranks.size();
  }
  loss.text += " This side holds " + std::to_string(size - lost.size()) +
               " of " + std::to_string(size) + " ranks";
  loss.is_minority = !MayGoOn(lost, static_cast<int>(size));
  if (loss.is_minority) loss.text += ", so it ends and writes nothing";
  return loss;
}

// Hosts that miss heartbeats now will be lost too. Without host 0 this one
// reaches nobody.
std::vector<int> Silence::RanksSilentAt(Clock::time_point now) const {
  std::vector<int> lost;
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (static_cast<int>(host) == options_.host) continue;
    if (options_.host != 0 || !hosts_[host].is_expected ||
        now - hosts_[host].last_heard > options_.timeout / 2) {
      const std::vector<int>& ranks = options_.job_ranks[host];
      lost.insert(lost.end(), ranks.begin(), ranks.end());
    }
  }
  return lost;
}

}  // namespace hvd
