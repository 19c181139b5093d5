// Finds the settings with which the steps of a training are fastest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/negotiation/request_params.h"
#include "tf_ops/negotiation/tuning.h"

namespace hvd {

// Not thread-safe: the coordinator alone uses it.
//
// A step lasts from one reduction of some tensor to the next one. A sample is
// some steps with the same settings; the first step after a change does not
// count, and the median of the others does. The first round tries each
// candidate once, the second the two fastest of them in turns. In the last one
// the best takes turns with the settings of the beginning, and must win each
// time by 3 %: so a search does not end with worse ones, but for noise.
//
// When it has ended it looks whether steps take another time for a minute, and
// then searches again. When other gradients are reduced, as by a new optimizer,
// it begins anew with the settings of the beginning. While no steps come, as in
// a long validation, those hold, too.
class Tuner {
 public:
  explicit Tuner(TuningBoard* board);

  // Notes an allreduce that all ranks have come for.
  void Note(const std::string& name, const RequestParams& params,
            Clock::time_point now);

  // Returns the settings that are to hold from now on, if they change.
  std::optional<Tunables> TakeChange();

 private:
  // A tensor: how often it came, and what it is.
  struct Seen {
    int count = 0;
    uint64_t hash = 0;
  };

  void Look(const std::string& name, const RequestParams& params);
  // Whether steps now have another anchor: its own has not come for long.
  bool IsOver(const std::string& name);
  void Restart();
  void OnStep(Clock::time_point now);
  void OnSample(double steps_per_second, Clock::time_point now);
  void BeginSearch();
  // Tries each of them, so many times in turns.
  void BeginRound(int round, const std::vector<Tunables>& settings,
                  int num_turns);
  void EndRound();
  void EndFinal();
  void End(const Tunables& chosen, double steps_per_second);
  void Watch(double seconds, Clock::time_point now);
  void Try();
  void Set(const Tunables& settings);
  // The steps a second that `settings` gave in this round; 0: none.
  double SpeedOf(const Tunables& settings) const;
  std::vector<Tunables> Candidates() const;

  TuningBoard* const board_;
  const TunerOptions& options_;
  TuningReport report_;
  Tunables settings_;
  std::optional<Tunables> change_;

  // Steps.
  std::string anchor_;  // the tensor whose reduction begins a step
  std::unordered_map<std::string, Seen> seen_;  // while looking
  int last_look_ = 0;  // at the anchor's reduction of that number
  std::optional<Clock::time_point> last_step_;
  double step_seconds_ = 0.0;  // of the last one
  // How often other gradients came since the anchor did.
  std::unordered_map<std::string, int> others_;

  // The search.
  int round_ = 0;
  std::vector<Tunables> trials_;  // of this round, that of now last
  std::vector<double> times_;     // of the steps of this sample
  bool skips_ = false;            // the next step
  bool is_paused_ = false;
  Clock::time_point first_sample_;

  // After it.
  std::vector<double> watched_;  // times of steps
  Clock::time_point watch_since_;
  double expected_ = 0.0;  // seconds a step; 0: not known
};

}  // namespace hvd
