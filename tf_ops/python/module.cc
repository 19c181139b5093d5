// The Python module `_core`: the engine without any framework, over NumPy.
// Every call returns a value or raises an exception of hvd_keras.exceptions.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tf_ops/core/engine.h"
#include "tf_ops/transport/in_memory/in_memory.h"
#include "tf_ops/transport/shm/shm.h"

namespace py = pybind11;

namespace hvd {
namespace {

// Raises the class that hvd_keras.exceptions has for the code.
void RaiseIfError(const Status& status) {
  if (status.ok()) return;
  const std::string name = std::string(StatusCodeName(status.code())) + "Error";
  const py::object type =
      py::module_::import("hvd_keras.exceptions").attr(name.c_str());
  PyErr_SetString(type.ptr(), status.message().c_str());
  throw py::error_already_set();
}

struct NamedType {
  const char* name;
  DataType dtype;
};
constexpr NamedType kNamedTypes[] = {
    {"bool", DataType::kBool},         {"uint8", DataType::kUint8},
    {"int8", DataType::kInt8},         {"uint16", DataType::kUint16},
    {"int16", DataType::kInt16},       {"uint32", DataType::kUint32},
    {"int32", DataType::kInt32},       {"uint64", DataType::kUint64},
    {"int64", DataType::kInt64},       {"float16", DataType::kFloat16},
    {"bfloat16", DataType::kBfloat16}, {"float32", DataType::kFloat32},
    {"float64", DataType::kFloat64},
};

DataType DataTypeOf(const py::array& array) {
  const std::string name = py::str(array.dtype().attr("name"));
  if (!array.dtype().attr("isnative").cast<bool>()) {
    throw py::type_error("arrays must be in the machine's byte order");
  }
  for (const NamedType& named : kNamedTypes) {
    if (name == named.name) return named.dtype;
  }
  throw py::type_error("no collective for arrays of dtype " + name);
}

Shape ShapeOf(const py::array& array) {
  Shape shape;
  for (py::ssize_t i = 0; i < array.ndim(); ++i)
    shape.push_back(array.shape(i));
  return shape;
}

py::array EmptyLike(const py::array& array, const Shape& shape) {
  return py::module_::import("numpy").attr("empty")(py::cast(shape),
                                                    array.dtype());
}

// Submits, waits without the GIL, raises on error.
void SubmitAndWait(Request request) {
  auto result = std::make_shared<std::promise<Status>>();
  request.done = [result](const Status& status) { result->set_value(status); };
  Status status;
  {
    py::gil_scoped_release release;
    std::future<Status> future = result->get_future();
    SubmitGlobal(std::move(request));
    status = future.get();
  }
  RaiseIfError(status);
}

using Arrays = std::vector<py::array>;

// Inputs and outputs, which the caller keeps alive.
Arrays Contiguous(const Arrays& arrays) {
  Arrays inputs;
  for (const py::array& array : arrays) {
    // Not ascontiguousarray, which makes scalars one-dimensional.
    inputs.push_back(
        py::module_::import("numpy").attr("require")(array, py::none(), "CA"));
  }
  return inputs;
}

Arrays RunInPlaceShaped(Request request, const Arrays& arrays) {
  const Arrays inputs = Contiguous(arrays);
  Arrays outputs;
  for (const py::array& input : inputs) {
    outputs.push_back(EmptyLike(input, ShapeOf(input)));
    RequestTensor tensor;
    tensor.dtype = DataTypeOf(input);
    tensor.shape = ShapeOf(input);
    tensor.input = input.data();
    tensor.output = outputs.back().mutable_data();
    request.tensors.push_back(std::move(tensor));
  }
  SubmitAndWait(std::move(request));
  return outputs;
}

Arrays AllreduceArrays(const std::string& name, const Arrays& arrays, int op,
                       double prescale, double postscale) {
  const bool known = op == 0 || op == 1 || (op >= 3 && op <= 5);
  if (!known) {
    throw py::value_error("`op` must be a ReduceOp. Received: " +
                          std::to_string(op));
  }
  Request request;
  request.kind = CollectiveKind::kAllreduce;
  request.name = name;
  request.op = static_cast<ReduceOp>(op);
  request.prescale = prescale;
  request.postscale = postscale;
  return RunInPlaceShaped(std::move(request), arrays);
}

Arrays BroadcastArrays(const std::string& name, const Arrays& arrays,
                       int root_rank) {
  Request request;
  request.kind = CollectiveKind::kBroadcast;
  request.name = name;
  request.root_rank = root_rank;
  return RunInPlaceShaped(std::move(request), arrays);
}

Arrays AllgatherArrays(const std::string& name, const Arrays& arrays) {
  const Arrays inputs = Contiguous(arrays);
  Arrays outputs(inputs.size());
  Request request;
  request.kind = CollectiveKind::kAllgather;
  request.name = name;
  for (const py::array& input : inputs) {
    RequestTensor tensor;
    tensor.dtype = DataTypeOf(input);
    tensor.shape = ShapeOf(input);
    tensor.input = input.data();
    request.tensors.push_back(std::move(tensor));
  }
  request.allocate_output = [&](size_t index, const Shape& shape,
                                void** output) {
    py::gil_scoped_acquire acquire;
    try {
      outputs[index] = EmptyLike(inputs[index], shape);
    } catch (const py::error_already_set& error) {
      return Status::Internal(error.what());
    }
    *output = outputs[index].mutable_data();
    return Status::Ok();
  };
  SubmitAndWait(std::move(request));
  return outputs;
}

std::pair<int, py::bytes> CreateSegment(int size) {
  ShmSegment segment;
  RaiseIfError(ShmTransport::CreateSegment(size, &segment));
  return {segment.fd, py::bytes(segment.token)};
}

using SegmentTuple = std::tuple<pid_t, int, py::bytes>;

std::unique_ptr<Transport> MakeTransport(
    int rank, const std::vector<pid_t>& pids,
    const std::optional<SegmentTuple>& segment) {
  if (!segment.has_value()) {
    return std::move(InMemoryTransport::CreateGroup(1)[0]);
  }
  ShmSegment where;
  where.pid = std::get<0>(*segment);
  where.fd = std::get<1>(*segment);
  where.token = std::get<2>(*segment);
  std::unique_ptr<ShmTransport> transport;
  RaiseIfError(ShmTransport::Attach(where, rank, pids, &transport));
  return transport;
}

void Init(int rank, int size, const std::vector<pid_t>& pids,
          const std::optional<SegmentTuple>& segment,
          const EngineOptions& options) {
  if (GlobalEngine() != nullptr) {
    throw py::value_error("the engine runs already: call shutdown() first");
  }
  if (size < 1 || rank < 0 || rank >= size ||
      pids.size() != static_cast<size_t>(size) ||
      (size > 1) != segment.has_value()) {
    throw py::value_error("`rank`, `size`, `pids` and `segment` do not match");
  }
  SetGlobalEngine(Engine::Create(MakeTransport(rank, pids, segment), options));
}

void Shutdown(const std::string& reason) {
  std::shared_ptr<Engine> engine = SetGlobalEngine(nullptr);
  if (engine == nullptr) return;
  py::gil_scoped_release release;
  engine->Shutdown(reason);
  // A kernel that is just submitting may hold it; it must not be the one to
  // destroy it, least of all on the engine's own thread. Leak it rather.
  for (int i = 0; i < 1000 && engine.use_count() > 1; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (engine.use_count() > 1) new std::shared_ptr<Engine>(engine);
  engine.reset();  // here, where callbacks may take the GIL
}

std::shared_ptr<Engine> EngineOrRaise() {
  std::shared_ptr<Engine> engine = GlobalEngine();
  if (engine == nullptr) {
    RaiseIfError(Status::NotInitialized("call hvd.init() first"));
  }
  return engine;
}

py::dict Stats() {
  const EngineStats stats = EngineOrRaise()->stats();
  py::dict result;
  result["num_requests"] = stats.num_requests;
  result["num_collectives"] = stats.num_collectives;
  result["num_bytes"] = stats.num_bytes;
  result["num_cache_hits"] = stats.num_cache_hits;
  result["num_cache_misses"] = stats.num_cache_misses;
  return result;
}

void NoteExitReason(const std::string& text) {
  const std::shared_ptr<Engine> engine = GlobalEngine();
  if (engine != nullptr) engine->NoteExitReason(text);
}

}  // namespace
}  // namespace hvd

PYBIND11_MODULE(_core, m) {
  using namespace pybind11::literals;
  m.doc() = "The collectives engine of hvd_keras, without any framework.";
  m.def("create_segment", &hvd::CreateSegment, "size"_a,
        "Makes the shared memory of `size` ranks; returns (fd, token).");
  m.def(
      "init",
      [](int rank, int size, const std::vector<pid_t>& pids,
         const std::optional<hvd::SegmentTuple>& segment,
         int64_t fusion_threshold_bytes, int32_t cache_capacity,
         double cycle_time_ms, double stall_warning_seconds,
         double stall_timeout_seconds) {
        hvd::EngineOptions options;
        options.fusion_threshold_bytes = fusion_threshold_bytes;
        options.cache_capacity = cache_capacity;
        options.cycle_time_ms = cycle_time_ms;
        options.stall_warning_seconds = stall_warning_seconds;
        options.stall_timeout_seconds = stall_timeout_seconds;
        hvd::Init(rank, size, pids, segment, options);
      },
      py::kw_only(), "rank"_a, "size"_a, "pids"_a, "segment"_a,
      "fusion_threshold_bytes"_a, "cache_capacity"_a, "cycle_time_ms"_a,
      "stall_warning_seconds"_a, "stall_timeout_seconds"_a,
      "Starts the engine of this process as one rank of `size`.");
  m.def("shutdown", &hvd::Shutdown, "reason"_a,
        "Leaves the job; pending collectives fail. Idempotent.");
  m.def("note_exit_reason", &hvd::NoteExitReason, "text"_a,
        "What peers are told if this process ends without shutdown().");
  m.def("is_initialized", [] { return hvd::GlobalEngine() != nullptr; });
  m.def("rank", [] { return hvd::EngineOrRaise()->rank(); });
  m.def("size", [] { return hvd::EngineOrRaise()->size(); });
  m.def("stats", &hvd::Stats);
  m.def("transports",
        [] { return std::vector<std::string>{"in_memory", "shm"}; });
  m.def("allreduce", &hvd::AllreduceArrays, "name"_a, "arrays"_a, "op"_a,
        "prescale"_a = 1.0, "postscale"_a = 1.0,
        "Reduces a list of arrays as one collective; blocks.");
  m.def("allgather", &hvd::AllgatherArrays, "name"_a, "arrays"_a,
        "Concatenates the arrays of all ranks along axis 0; blocks.");
  m.def("broadcast", &hvd::BroadcastArrays, "name"_a, "arrays"_a, "root_rank"_a,
        "Copies the arrays of `root_rank` to all; blocks.");
}
