#include "tf_ops/negotiation/tuner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tf_ops/negotiation/training_step.h"

namespace hvd {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int kWarmup = 0;
constexpr int kFirst = 1;
constexpr int kPairs = 2;
constexpr int kFinal = 3;

// How much faster than those of the beginning the best settings must be.
constexpr double kGain = 1.03;
constexpr int kTurns = 2;       // of the second round
constexpr int kFinalTurns = 3;  // which must all be won

// A tensor by which no gradients are reduced begins steps after so many times.
constexpr int kEnough = 10;
// So many steps show which tensors come in each.
constexpr int kLooks = 3;
constexpr size_t kMostNames = 4096;
// Other gradients came so often without the anchor: a second optimizer that
// acts in some steps alone does less.
constexpr int kOver = 20;
// No step for so long, and for three times the last one, is a pause.
constexpr double kPauseSeconds = 10.0;

constexpr double kWatchSeconds = 60.0;
constexpr double kDrift = 1.3;
constexpr size_t kMostWatched = 4096;
constexpr size_t kMostWarmups = 100;  // that are kept

double Median(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

uint64_t HashOf(const RequestParams& params) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  const auto add = [&hash](uint64_t value) {
    hash = (hash ^ value) * 1099511628211u;
  };
  add(static_cast<uint64_t>(params.device));
  for (const TensorParams& tensor : params.tensors) {
    add(static_cast<uint64_t>(tensor.dtype));
    add(static_cast<uint64_t>(tensor.num_bytes()));
  }
  return hash;
}

}  // namespace

Tuner::Tuner(TuningBoard* board)
    : board_(board),
      options_(board->options()),
      settings_(board->options().begin) {
  report_.settings = settings_;
  board_->Publish(report_);
}

void Tuner::Note(const std::string& name, const RequestParams& params,
                 Clock::time_point now) {
  if (IsOver(name)) Restart();
  if (report_.signature == 0) Look(name, params);
  if (name == anchor_) {
    OnStep(now);
  } else if (report_.state == TuningState::kSearching && !is_paused_ &&
             Seconds(now - *last_step_).count() >
                 std::max(kPauseSeconds, 3 * step_seconds_)) {
    is_paused_ = true;
    Set(options_.begin);
  }
}

bool Tuner::IsOver(const std::string& name) {
  if (anchor_.empty()) return false;
  if (name == anchor_) {
    others_.clear();
    return false;
  }
  return ReducesGradients(name) && others_.size() < kMostNames &&
         ++others_[name] >= kOver;
}

void Tuner::Restart() {
  anchor_.clear();
  seen_.clear();
  others_.clear();
  trials_.clear();
  times_.clear();
  last_step_.reset();
  is_paused_ = false;
  report_.signature = 0;
  report_.state = TuningState::kLooking;
  report_.samples.clear();
  ++report_.num_looks;
  Set(options_.begin);
  board_->Publish(report_);
}

// A step may reduce its tensors in another order than the one before.
void Tuner::Look(const std::string& name, const RequestParams& params) {
  if (seen_.size() >= kMostNames && seen_.count(name) == 0) return;
  Seen& seen = seen_[name];
  ++seen.count;
  seen.hash = HashOf(params);
  if (anchor_.empty() && seen.count >= (ReducesGradients(name) ? 2 : kEnough)) {
    anchor_ = name;
    last_look_ = seen.count + kLooks;
  }
  if (name != anchor_ || seen.count < last_look_) return;
  for (const auto& [other, of_other] : seen_) {
    if (of_other.count > 1) report_.signature += of_other.hash;
  }
  report_.signature |= 1;  // not 0
  report_.state = TuningState::kAsking;
  seen_.clear();
  board_->Publish(report_);
}

void Tuner::OnStep(Clock::time_point now) {
  const double seconds =
      last_step_.has_value() ? Seconds(now - *last_step_).count() : 0.0;
  last_step_ = now;
  step_seconds_ = seconds;
  switch (report_.state) {
    case TuningState::kLooking:
      return;
    case TuningState::kAsking: {
      const std::optional<TuningAnswer> answer = board_->TakeAnswer();
      if (!answer.has_value() || answer->look != report_.num_looks) return;
      first_sample_ = now;
      if (answer->known.has_value()) {
        End(*answer->known, answer->steps_per_second);
      } else {
        BeginSearch();
      }
      return;
    }
    case TuningState::kSearching:
      if (std::exchange(is_paused_, false)) return Try();
      if (std::exchange(skips_, false)) return;
      times_.push_back(seconds);
      if (times_.size() < static_cast<size_t>(options_.steps_per_sample)) {
        return;
      }
      OnSample(1.0 / std::max(Median(times_), 1e-9), now);
      return;
    case TuningState::kDone:
      Watch(seconds, now);
      return;
  }
}

void Tuner::BeginSearch() {
  report_.state = TuningState::kSearching;
  ++report_.num_searches;
  BeginRound(kWarmup, {settings_}, options_.warmup_samples);
}

void Tuner::BeginRound(int round, const std::vector<Tunables>& settings,
                       int num_turns) {
  round_ = round;
  for (int turn = 0; turn < num_turns; ++turn) {
    trials_.insert(trials_.end(), settings.rbegin(), settings.rend());
  }
  Try();
}

void Tuner::Try() {
  times_.clear();
  if (trials_.empty()) return EndRound();
  Set(trials_.back());
  skips_ = true;
}

void Tuner::OnSample(double steps_per_second, Clock::time_point now) {
  if (round_ != kWarmup || report_.samples.size() < kMostWarmups) {
    report_.samples.push_back({Seconds(now - first_sample_).count(),
                               trials_.back(), steps_per_second, round_});
  }
  trials_.pop_back();
  Try();
  board_->Publish(report_);
}

double Tuner::SpeedOf(const Tunables& settings) const {
  std::vector<double> speeds;
  for (const TuningSample& sample : report_.samples) {
    if (sample.round == round_ && sample.settings == settings) {
      speeds.push_back(sample.steps_per_second);
    }
  }
  return speeds.empty() ? 0.0 : Median(std::move(speeds));
}

void Tuner::EndRound() {
  std::vector<Tunables> all = Candidates();
  std::stable_sort(all.begin(), all.end(),
                   [this](const Tunables& a, const Tunables& b) {
                     return SpeedOf(a) > SpeedOf(b);
                   });
  const Tunables& best = all.front();
  switch (round_) {
    case kWarmup:
      if (all.size() < 2) return End(settings_, 0.0);
      return BeginRound(kFirst, Candidates(), 1);
    case kFirst:
      return BeginRound(kPairs, {all[0], all[1]}, kTurns);
    case kPairs:
      if (best == options_.begin) return End(best, SpeedOf(best));
      return BeginRound(kFinal, {best, options_.begin}, kFinalTurns);
    default:
      return EndFinal();
  }
}

// The two have taken turns; the one that is not of the beginning came first.
void Tuner::EndFinal() {
  bool has_won = true;
  std::optional<TuningSample> first;
  for (const TuningSample& sample : report_.samples) {
    if (sample.round != kFinal) continue;
    if (sample.settings == options_.begin) {
      has_won =
          has_won && first->steps_per_second > kGain * sample.steps_per_second;
    } else {
      first = sample;
    }
  }
  const Tunables chosen = has_won ? first->settings : options_.begin;
  End(chosen, SpeedOf(chosen));
}

void Tuner::End(const Tunables& chosen, double steps_per_second) {
  trials_.clear();
  times_.clear();
  watched_.clear();
  expected_ = steps_per_second > 0.0 ? 1.0 / steps_per_second : 0.0;
  watch_since_ = *last_step_;
  report_.state = TuningState::kDone;
  Set(chosen);
  board_->Publish(report_);
}

void Tuner::Watch(double seconds, Clock::time_point now) {
  if (watched_.size() < kMostWatched) watched_.push_back(seconds);
  if (Seconds(now - watch_since_).count() < kWatchSeconds) return;
  const double median = Median(std::exchange(watched_, {}));
  watch_since_ = now;
  if (expected_ > 0.0 &&
      (median > kDrift * expected_ || median < expected_ / kDrift)) {
    report_.samples.clear();
    Set(options_.begin);
    BeginSearch();
    board_->Publish(report_);
  } else if (expected_ == 0.0) {
    expected_ = median;
  }
}

void Tuner::Set(const Tunables& settings) {
  report_.settings = settings;
  if (settings == settings_) return;
  settings_ = settings;
  change_ = settings;
}

std::optional<Tunables> Tuner::TakeChange() {
  return std::exchange(change_, std::nullopt);
}

// Those of the beginning come first. Without a wait, from large parts to small
// ones; then with a wait in which more tensors come.
std::vector<Tunables> Tuner::Candidates() const {
  std::vector<Tunables> all{options_.begin};
  for (const auto& [megabytes, microseconds] : {std::pair{128.0, 0},
                                                {32.0, 0},
                                                {8.0, 0},
                                                {2.0, 0},
                                                {0.5, 0},
                                                {128.0, 1000},
                                                {8.0, 1000},
                                                {128.0, 5000},
                                                {0.0, 0}}) {
    Tunables one{static_cast<int64_t>(megabytes * (1 << 20)), microseconds};
    if (options_.keeps_fusion_threshold) {
      one.fusion_threshold_bytes = options_.begin.fusion_threshold_bytes;
    }
    if (options_.keeps_cycle_time) {
      one.cycle_time_us = options_.begin.cycle_time_us;
    }
    const bool is_new = std::find(all.begin(), all.end(), one) == all.end();
    if (is_new && static_cast<int>(all.size()) < options_.max_samples) {
      all.push_back(one);
    }
  }
  return all;
}

}  // namespace hvd
