#include "tf_ops/python/tuning.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>

#include "tf_ops/negotiation/tuning.h"
#include "tf_ops/process/global_engine.h"

namespace hvd {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

std::shared_ptr<TuningBoard> TheBoard() {
  const std::shared_ptr<Engine> engine = GlobalEngine();
  return engine == nullptr ? nullptr : engine->options().tuning;
}

const char* NameOf(TuningState state) {
  switch (state) {
    case TuningState::kLooking:
      return "looking";
    case TuningState::kAsking:
      return "asking";
    case TuningState::kSearching:
      return "searching";
    case TuningState::kDone:
      return "done";
  }
  return "";
}

py::tuple TupleOf(const Tunables& settings) {
  return py::make_tuple(settings.fusion_threshold_bytes,
                        settings.cycle_time_us);
}

py::object Report() {
  const std::shared_ptr<TuningBoard> board = TheBoard();
  if (board == nullptr) return py::none();
  const TuningReport report = board->report();
  py::list samples;
  for (const TuningSample& one : report.samples) {
    samples.append(py::make_tuple(one.seconds, one.round, TupleOf(one.settings),
                                  one.steps_per_second));
  }
  py::dict result;
  result["state"] = NameOf(report.state);
  result["look"] = report.num_looks;
  result["search"] = report.num_searches;
  result["signature"] = report.signature;
  result["settings"] = TupleOf(report.settings);
  result["samples"] = samples;
  return result;
}

py::list Changes() {
  py::list changes;
  const std::shared_ptr<TuningBoard> board = TheBoard();
  if (board == nullptr) return changes;
  for (const TuningChange& one : board->changes()) {
    changes.append(py::make_tuple(one.collective, TupleOf(one.settings)));
  }
  return changes;
}

void Answer(int look, std::optional<std::pair<int64_t, int64_t>> known,
            double steps_per_second) {
  const std::shared_ptr<TuningBoard> board = TheBoard();
  if (board == nullptr) return;
  TuningAnswer answer;
  answer.look = look;
  if (known.has_value()) answer.known = Tunables{known->first, known->second};
  answer.steps_per_second = steps_per_second;
  board->Answer(answer);
}

}  // namespace

void DefineTuning(py::module_* m) {
  py::class_<TunerOptions>(*m, "TunerOptions", "What the autotuner may do.")
      .def(py::init<>())
      .def_property(
          "begin", [](const TunerOptions& o) { return TupleOf(o.begin); },
          [](TunerOptions& o, std::pair<int64_t, int64_t> settings) {
            o.begin = Tunables{settings.first, settings.second};
          })
      .def_readwrite("keeps_fusion_threshold",
                     &TunerOptions::keeps_fusion_threshold)
      .def_readwrite("keeps_cycle_time", &TunerOptions::keeps_cycle_time)
      .def_readwrite("warmup_samples", &TunerOptions::warmup_samples)
      .def_readwrite("steps_per_sample", &TunerOptions::steps_per_sample)
      .def_readwrite("max_samples", &TunerOptions::max_samples);
  m->def("tuning_report", &Report,
         "What the tuner knows; settings are (fusion threshold in bytes, cycle "
         "time in microseconds). On rank 0; None if nothing is tuned.");
  m->def("tuning_changes", &Changes,
         "The changes of settings: (number of the collective, settings).");
  m->def("answer_tuner", &Answer, "look"_a, "known"_a, "steps_per_second"_a,
         "Tells a tuner that asks which settings an earlier run has found.");
}

}  // namespace hvd
