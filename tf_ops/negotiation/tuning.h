// What may change while a job runs without changing a result, and where the
// engine's threads and Python speak of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tf_ops/common/thread_annotations.h"

namespace hvd {

// Settings of an engine that a tuner may change. Which requests run together
// changes no bit of what they return in host memory.
struct Tunables {
  int64_t fusion_threshold_bytes = 128 << 20;
  int64_t cycle_time_us = 0;

  bool operator==(const Tunables& o) const {
    return fusion_threshold_bytes == o.fusion_threshold_bytes &&
           cycle_time_us == o.cycle_time_us;
  }
};

struct TunerOptions {
  Tunables begin;                       // the defaults, or what the user wants
  bool keeps_fusion_threshold = false;  // the user has set it
  bool keeps_cycle_time = false;
  int warmup_samples = 3;
  int steps_per_sample = 5;
  int max_samples = 20;  // of the first round: each tries other settings
};

// Steps with some settings.
struct TuningSample {
  double seconds = 0.0;  // since the first sample
  Tunables settings;
  double steps_per_second = 0.0;
  int round = 0;  // 0: the warm-up
};

enum class TuningState : uint8_t {
  kLooking,  // for steps that are alike
  kAsking,   // whether the settings for `signature` are known
  kSearching,
  kDone,
};

// What the coordinator's tuner knows.
struct TuningReport {
  TuningState state = TuningState::kLooking;
  int num_looks = 0;       // it looks for other steps when its own are over
  int num_searches = 0;    // begun; `samples` are of the last one
  uint64_t signature = 0;  // of the tensors of a step; 0: not known
  std::vector<TuningSample> samples;
  Tunables settings;
};

// Settings that all ranks have changed to, before the collectives that come
// after number `collective` in the order of all ranks.
struct TuningChange {
  uint64_t collective = 0;
  Tunables settings;
};

// Settings known from an earlier run; none: search.
struct TuningAnswer {
  int look = 0;  // TuningReport::num_looks of what was asked
  std::optional<Tunables> known;
  double steps_per_second = 0.0;  // which they gave; 0: not known
};

// Thread-safe; held for a moment at a time.
class TuningBoard {
 public:
  explicit TuningBoard(const TunerOptions& options) : options_(options) {}

  const TunerOptions& options() const { return options_; }

  void Publish(const TuningReport& report) {
    MutexLock lock(&mu_);
    report_ = report;
  }
  TuningReport report() {
    MutexLock lock(&mu_);
    return report_;
  }
  void Answer(const TuningAnswer& answer) {
    MutexLock lock(&mu_);
    answer_ = answer;
  }
  std::optional<TuningAnswer> TakeAnswer() {
    MutexLock lock(&mu_);
    std::optional<TuningAnswer> answer = answer_;
    answer_.reset();
    return answer;
  }
  void NoteChange(const TuningChange& change) {
    MutexLock lock(&mu_);
    if (changes_.size() == kMostChanges) changes_.erase(changes_.begin());
    changes_.push_back(change);
  }
  std::vector<TuningChange> changes() {
    MutexLock lock(&mu_);
    return changes_;
  }

 private:
  static constexpr size_t kMostChanges = 4096;  // that are kept

  const TunerOptions options_;
  Mutex mu_;
  TuningReport report_ GUARDED_BY(mu_);
  std::optional<TuningAnswer> answer_ GUARDED_BY(mu_);
  std::vector<TuningChange> changes_ GUARDED_BY(mu_);
};

}  // namespace hvd
