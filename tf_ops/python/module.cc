// The Python module `_core`: the engine without any framework, over NumPy.
// Every call returns a value or raises an exception of hvd_keras.exceptions.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "tf_ops/engine/gpu_packing.h"
#include "tf_ops/observe/batch_notes.h"
#include "tf_ops/observe/flight_writer.h"
#include "tf_ops/observe/profiler_ranges.h"
#include "tf_ops/observe/timeline.h"
#include "tf_ops/process/local_topology.h"
#include "tf_ops/python/arrays.h"
#include "tf_ops/python/gpu.h"
#include "tf_ops/python/job.h"
#include "tf_ops/python/raise.h"
#include "tf_ops/python/records.h"
#include "tf_ops/python/tuning.h"
#include "tf_ops/wire/majority.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace {

void DefineOptions(py::module_* m) {
  using hvd::EngineOptions;
  using hvd::GpuOptions;
  py::class_<GpuOptions>(*m, "GpuOptions")
      .def_readwrite("fusion_buffer_bytes", &GpuOptions::fusion_buffer_bytes)
      .def_readwrite("direct_bytes", &GpuOptions::direct_bytes)
      .def_property(
          "packing", nullptr,
          [](GpuOptions& options, const std::string& name) {
            options.packing = hvd::PackingOf(name);
          },
          "How small tensors go: batch, copies or none; else it is measured.")
      .def_readwrite("tells_packing", &GpuOptions::tells_packing)
      .def_readwrite("done_in_stream_order", &GpuOptions::done_in_stream_order)
      .def_readwrite("local_rank", &GpuOptions::local_rank)
      .def_readwrite("may_share", &GpuOptions::may_share);
  py::class_<EngineOptions>(*m, "EngineOptions",
                            "The settings of an engine: see options.h.")
      .def(py::init<>())
      .def_readwrite("fusion_threshold_bytes",
                     &EngineOptions::fusion_threshold_bytes)
      .def_readwrite("cache_capacity", &EngineOptions::cache_capacity)
      .def_readwrite("cycle_time_ms", &EngineOptions::cycle_time_ms)
      .def_readwrite("stall_warning_seconds",
                     &EngineOptions::stall_warning_seconds)
      .def_readwrite("stall_timeout_seconds",
                     &EngineOptions::stall_timeout_seconds)
      .def_readwrite("gpu", &EngineOptions::gpu)
      .def_readwrite("processes", &EngineOptions::processes)
      .def(
          "tune",
          [](EngineOptions& options, const hvd::TunerOptions& tuner) {
            options.tuning = std::make_shared<hvd::TuningBoard>(tuner);
          },
          "tuner"_a, "Has the autotuner change settings while the job runs.");
}

void DefineJob(py::module_* m) {
  py::class_<hvd::Hosts>(*m, "Hosts",
                         "Where ranks are, if they are on several hosts.")
      .def(py::init<>())
      .def_readwrite("ranks", &hvd::Hosts::ranks)
      .def_readwrite("sockets", &hvd::Hosts::sockets)
      .def_readwrite("own_host", &hvd::Hosts::own_host)
      .def_readwrite("leader_names", &hvd::Hosts::leader_names)
      .def_readwrite("host_names", &hvd::Hosts::host_names)
      .def_readwrite("job_ranks", &hvd::Hosts::job_ranks)
      .def_readwrite("heartbeat_seconds", &hvd::Hosts::heartbeat_seconds)
      .def_readwrite("timeout_seconds", &hvd::Hosts::timeout_seconds);
  m->def("create_segment", &hvd::CreateJobSegment, "size"_a,
         "has_wire"_a = false,
         "Makes the shared memory of `size` ranks of this host, and of its "
         "wire if there are several hosts; returns (fd, token).");
  m->def("init", &hvd::Init, py::kw_only(), "rank"_a, "size"_a, "epoch"_a,
         "pids"_a, "segment"_a, "hosts"_a, "options"_a,
         "Starts the engine of this process as one rank of `size`.");
  m->def("shutdown", &hvd::Shutdown, "reason"_a,
         "Leaves the job; pending collectives fail. Idempotent.");
  m->def("note_exit_reason", &hvd::NoteExitReason, "text"_a,
         "Sets what peers are told if this process ends without shutdown().");
  m->def("note_failure", &hvd::NoteFailure, "text"_a,
         "Sets what peers are told of a failure; call it before shutdown().");
  m->def(
      "set_local_topology",
      [](int rank, int size) { hvd::SetLocalTopology({rank, size}); }, "rank"_a,
      "size"_a, "Sets rank and size on this host; call it before init().");
  m->def(
      "set_training_step", &hvd::SetTrainingStep, "step"_a,
      "Sets the step that later calls belong to, see training_step.h; 0: not "
      "known. Ranks that reduce gradients of other steps get an error.");
  m->def(
      "take_batch_notes",
      [](int32_t pipeline) {
        py::list notes;
        for (const hvd::BatchNote& note : hvd::TakeBatchNotes(pipeline)) {
          notes.append(py::make_tuple(note.iteration, py::bytes(note.text)));
        }
        return notes;
      },
      "pipeline"_a,
      "What HorovodNoteBatch has noted since the last call, each with the "
      "number of its iteration.");
  m->def("check_peers", &hvd::CheckPeers, "Raises if a rank is lost.");
  m->def("is_minority", &hvd::IsMinority,
         "Whether the network has come apart and this side must end.");
  m->def("may_go_on", &hvd::MayGoOn, "lost"_a, "size"_a,
         "Whether ranks that have lost `lost` may go on.");
  m->def("is_initialized", [] { return hvd::GlobalEngine() != nullptr; });
  m->def("rank", [] { return hvd::EngineOrRaise()->rank(); });
  m->def("size", [] { return hvd::EngineOrRaise()->size(); });
  m->def("stats", &hvd::Stats);
  m->def("num_shared", &hvd::NumShared,
         "Collectives by which this rank may have trained with others.");
  m->def("num_same", &hvd::NumSame,
         "Sums of these to which all ranks brought the same values; 0 if one "
         "was not so.");
  m->def("num_broadcast_bytes", &hvd::NumBroadcastBytes,
         "Bytes of the broadcasts that this rank took part in.");
  m->def("last_ranks", &hvd::LastRanks,
         "How often each rank came last to what this one coordinates, and by "
         "how many nanoseconds in all.");
  m->def(
      "set_trace_me",
      [](uintptr_t record, uintptr_t level) {
        hvd::TraceMeApi api;
        api.record = reinterpret_cast<decltype(api.record)>(record);
        api.level = reinterpret_cast<decltype(api.level)>(level);
        hvd::TheProfilerRanges()->SetTraceMe(api);
      },
      "record"_a, "level"_a,
      "Shows collectives to the profiler with these functions.");
  m->def(
      "set_flight_file",
      [](int rank, int size, const std::string& host, const std::string& path) {
        hvd::RaiseIfError(hvd::SetFlightFile({rank, size, host, ""}, path));
      },
      "rank"_a, "size"_a, "host"_a, "path"_a,
      "Sets where the flight record goes after a failure; empty: nowhere.");
  m->def("set_stack_writer", &hvd::SetStackWriter, "requests"_a,
         "Has SIGUSR2 ask this socket for Python's stacks, a byte each time.");
  m->def("set_flight_position", &hvd::SetFlightPosition, "epoch"_a, "batch"_a,
         "Says which batch `fit` takes, from 1 on; 0, 0: it does not run.");
  m->def(
      "write_flight_record",
      [](const std::string& path, const std::string& reason) {
        hvd::RaiseIfError(hvd::WithoutGil(
            [&] { return hvd::WriteFlightRecord(path, reason); }));
      },
      "path"_a, "reason"_a,
      "Writes the flight record now; an empty path: see set_flight_file.");
  m->def("num_pending", &hvd::NumPending,
         "How many requests of this rank wait for other ranks or run.");
  m->def("transports",
         [] { return std::vector<std::string>{"in_memory", "shm", "nccl"}; });
}

void DefineTimeline(py::module_* m) {
  m->def(
      "start_timeline",
      [](const std::string& path, const std::string& header) {
        hvd::RaiseIfError(hvd::WithoutGil(
            [&] { return hvd::TheTimeline()->Start(path, header); }));
      },
      "path"_a, "header"_a,
      "Begins to record into a file; `header`: JSON about this process.");
  m->def(
      "stop_timeline",
      [](bool reads_clock) {
        hvd::RaiseIfError(hvd::WithoutGil(
            [&] { return hvd::TheTimeline()->Stop(reads_clock); }));
      },
      "reads_clock"_a,
      "Completes the file, after a last reading of host 0's clock. "
      "Idempotent.");
  m->def("timeline_is_on", [] { return hvd::TheTimeline()->is_on(); });
  m->def(
      "add_step_to_timeline",
      [](int64_t step, int32_t epoch, int64_t begin_ns, int64_t end_ns) {
        hvd::TheTimeline()->OnStep(step, epoch,
                                   std::chrono::nanoseconds(begin_ns),
                                   std::chrono::nanoseconds(end_ns));
      },
      "step"_a, "epoch"_a, "begin_ns"_a, "end_ns"_a,
      "Times are those of time.monotonic_ns().");
}

void DefineProcessSets(py::module_* m) {
  m->def("add_process_set", &hvd::AddSet, "process_set_id"_a, "ranks"_a,
         "segment"_a = py::none(), "hosts"_a = py::none(),
         "Registers a set of ranks on this rank. Members of a set of several "
         "ranks give its shared memory.");
  m->def("remove_process_set", &hvd::RemoveSet, "process_set_id"_a,
         "Forgets a set on this rank; its pending collectives fail.");
  m->def("process_set_ids", &hvd::ProcessSetIds);
  m->def("process_set_ranks", &hvd::RanksOfSet, "process_set_id"_a);
  m->def("num_joins", &hvd::NumJoins, "process_set_id"_a,
         "How many calls of join have ended; 0 without such a set.");
}

hvd::CallOptions OptionsOfReduction(int op, double prescale, double postscale,
                                    int32_t process_set_id) {
  hvd::CallOptions options;
  options.op = op;
  options.prescale = prescale;
  options.postscale = postscale;
  options.process_set_id = process_set_id;
  return options;
}

void DefineSubmit(py::module_* m) {
  py::class_<hvd::ArrayCall>(*m, "ArrayCall")
      .def_property_readonly("is_done", &hvd::ArrayCall::is_done)
      .def_property_readonly("received", &hvd::ArrayCall::received,
                             "Alltoall: rows from each rank, after wait().")
      .def("wait", &hvd::ArrayCall::Wait,
           "Blocks until the call has ended; returns its results, or raises.");
  m->def(
      "submit",
      [](const std::string& kind, const std::string& name,
         const hvd::Arrays& arrays, int op, double prescale, double postscale,
         int32_t root_rank, std::optional<std::vector<int64_t>> splits,
         int32_t process_set_id, bool in_place, int wire_format) {
        hvd::CallOptions options =
            OptionsOfReduction(op, prescale, postscale, process_set_id);
        options.wire_format = wire_format;
        options.root_rank = root_rank;
        options.splits = std::move(splits);
        options.in_place = in_place;
        return std::make_unique<hvd::ArrayCall>(kind, name, arrays, options);
      },
      "kind"_a, "name"_a, "arrays"_a, py::kw_only(), "op"_a = 0,
      "prescale"_a = 1.0, "postscale"_a = 1.0, "root_rank"_a = 0,
      "splits"_a = py::none(), "process_set_id"_a = 0, "in_place"_a = false,
      "wire_format"_a = 0,
      "Begins a collective over arrays, which nobody may change before its "
      "end; returns an ArrayCall.");
}

void DefineCollectives(py::module_* m) {
  using hvd::ArrayCall;
  using hvd::Arrays;
  m->def(
      "allreduce",
      [](const std::string& name, const Arrays& arrays, int op, double prescale,
         double postscale, int32_t process_set_id, bool in_place,
         int wire_format) {
        hvd::CallOptions options =
            OptionsOfReduction(op, prescale, postscale, process_set_id);
        options.wire_format = wire_format;
        options.in_place = in_place;
        return ArrayCall("allreduce", name, arrays, options).Wait();
      },
      "name"_a, "arrays"_a, "op"_a, "prescale"_a = 1.0, "postscale"_a = 1.0,
      "process_set_id"_a = 0, py::kw_only(), "in_place"_a = false,
      "wire_format"_a = 0,
      "Reduces a list of arrays as one collective; blocks. With `in_place` the "
      "results replace the arrays, which must be C-contiguous and writable.");
  m->def(
      "reducescatter",
      [](const std::string& name, const Arrays& arrays, int op, double prescale,
         double postscale, int32_t process_set_id) {
        return ArrayCall(
                   "reducescatter", name, arrays,
                   OptionsOfReduction(op, prescale, postscale, process_set_id))
            .Wait();
      },
      "name"_a, "arrays"_a, "op"_a, "prescale"_a = 1.0, "postscale"_a = 1.0,
      "process_set_id"_a = 0,
      "Reduces arrays and gives each rank some of the rows; blocks.");
  m->def(
      "allgather",
      [](const std::string& name, const Arrays& arrays,
         int32_t process_set_id) {
        hvd::CallOptions options;
        options.process_set_id = process_set_id;
        return ArrayCall("allgather", name, arrays, options).Wait();
      },
      "name"_a, "arrays"_a, "process_set_id"_a = 0,
      "Concatenates the arrays of all ranks along axis 0; blocks.");
  m->def(
      "broadcast",
      [](const std::string& name, const Arrays& arrays, int32_t root_rank,
         int32_t process_set_id) {
        hvd::CallOptions options;
        options.root_rank = root_rank;
        options.process_set_id = process_set_id;
        return ArrayCall("broadcast", name, arrays, options).Wait();
      },
      "name"_a, "arrays"_a, "root_rank"_a, "process_set_id"_a = 0,
      "Copies the arrays of `root_rank` to all; blocks.");
  m->def(
      "alltoall",
      [](const std::string& name, const py::array& array,
         std::optional<std::vector<int64_t>> splits, int32_t process_set_id) {
        hvd::CallOptions options;
        options.splits = std::move(splits);
        options.process_set_id = process_set_id;
        ArrayCall call("alltoall", name, {array}, options);
        const Arrays outputs = call.Wait();
        return std::make_pair(outputs[0], call.received());
      },
      "name"_a, "array"_a, "splits"_a = py::none(), "process_set_id"_a = 0,
      "Sends rows to each rank; returns (array, rows from each); blocks.");
  m->def("barrier", &hvd::Barrier, "name"_a, "process_set_id"_a = 0,
         "Blocks until all ranks have come.");
  m->def("refuse", &hvd::RefuseCollective, "kind"_a, "name"_a,
         "process_set_id"_a, "why"_a,
         "Fails a collective on all ranks; blocks until they are told.");
  m->def("join", &hvd::Join, "process_set_id"_a = 0,
         "average_over_active"_a = false,
         "Blocks until all ranks have joined; returns the one that was last.");
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The collectives engine of hvd_keras, without any framework.";
  hvd::DefineTuning(&m);
  DefineOptions(&m);
  DefineJob(&m);
  DefineTimeline(&m);
  DefineProcessSets(&m);
  DefineSubmit(&m);
  DefineCollectives(&m);
  hvd::DefineGpu(&m);
  hvd::DefineRecords(&m);
}
