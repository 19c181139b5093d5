#include "tf_ops/python/arrays.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <unordered_map>

#include "tf_ops/common/huge_pages.h"
#include "tf_ops/process/global_engine.h"
#include "tf_ops/python/raise.h"

namespace py = pybind11;

namespace hvd {
namespace {

// A program may make dtypes without end, each an object of its own.
constexpr size_t kMaxDtypes = 64;

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

// Raises for an array that no collective takes. Python's `dtype.name` is slow;
// so dtypes that were seen are remembered, with the GIL, and kept alive.
DataType CheckedDataType(const py::array& array, const Request& request) {
  static auto* const seen = new std::unordered_map<PyObject*, DataType>();
  const auto found = seen->find(array.dtype().ptr());
  if (found != seen->end()) return found->second;
  const std::string name = py::str(array.dtype().attr("name"));
  const bool is_native = array.dtype().attr("isnative").cast<bool>();
  DataType dtype;
  if (is_native && DataTypeFromName(name, &dtype)) {
    if (seen->size() < kMaxDtypes) {
      (*seen)[array.dtype().inc_ref().ptr()] = dtype;
    }
    return dtype;
  }
  const std::string received =
      is_native ? name : name + " in non-native byte order";
  RaiseIfError(
      Status::InvalidArgument(
          "a tensor must be of type bool, (u)int8 to (u)int64, float16, "
          "bfloat16, float32, float64, float8_e4m3fn or float8_e5m2. "
          "Received: " +
          received)
          .WithContext(std::string(CollectiveKindName(request.kind)) + " '" +
                       request.name + "'"));
  return DataType::kBool;  // not reached
}

}  // namespace

// What the engine and the caller share of a call. If the caller leaves before
// the end, the arrays stay here for as long as the engine uses them.
class PendingCall {
 public:
  // On the engine's threads, without the GIL.
  void End(const Status& status) {
    if (state_.exchange(State::kEnded) == State::kLeft) {
      // The main thread will free them. If Python is ending, nobody need.
      Py_AddPendingCall(&FreeArrays, arrays_);
    }
    result_.set_value(status);
  }

  bool is_done() const { return state_.load() == State::kEnded; }

  // Waits without the GIL; raises what a signal handler raises. A signal goes
  // before an error: a Ctrl-C ends the peers too, and they may be the first.
  Status Wait() {
    {
      py::gil_scoped_release release;
      while (future_.wait_for(kSignalInterval) != std::future_status::ready) {
        py::gil_scoped_acquire acquire;
        RaiseOfSignals();
      }
    }
    Status status = future_.get();
    if (!status.ok()) RaiseOfSignals();
    return status;
  }

  // Takes the arrays of a caller that leaves, with the GIL.
  void Leave(std::unique_ptr<Arrays> arrays) {
    arrays_ = arrays.get();
    State expected = State::kWaiting;
    if (state_.compare_exchange_strong(expected, State::kLeft)) {
      static_cast<void>(arrays.release());
    }
  }

 private:
  enum class State { kWaiting, kEnded, kLeft };

  static constexpr std::chrono::milliseconds kSignalInterval{100};

  static void RaiseOfSignals() {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }

  static int FreeArrays(void* arrays) {
    delete static_cast<Arrays*>(arrays);
    return 0;
  }

  std::promise<Status> result_;
  std::shared_future<Status> future_{result_.get_future()};
  std::atomic<State> state_{State::kWaiting};
  Arrays* arrays_ = nullptr;  // owned in kLeft
};

namespace {

// Submits without the GIL. The request may use the memory of arrays that the
// caller keeps until the end or gives to Leave(), but nothing of its stack.
std::shared_ptr<PendingCall> Begin(Request request) {
  auto call = std::make_shared<PendingCall>();
  request.done = [call](const Status& status) { call->End(status); };
  py::gil_scoped_release release;
  SubmitGlobal(std::move(request));
  return call;
}

// Submits a request without arrays and waits; raises on error.
void SubmitAndWait(Request request) {
  RaiseIfError(Begin(std::move(request))->Wait());
}

// Returns C-contiguous arrays of the same values; the caller keeps them alive.
Arrays Contiguous(const Arrays& arrays) {
  Arrays inputs;
  for (const py::array& array : arrays) {
    // Not ascontiguousarray, which makes scalars one-dimensional.
    inputs.push_back(
        py::module_::import("numpy").attr("require")(array, py::none(), "CA"));
  }
  return inputs;
}

Request MakeRequest(CollectiveKind kind, const std::string& name,
                    int32_t process_set_id) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.process_set_id = process_set_id;
  return request;
}

CollectiveKind KindOf(const std::string& name) {
  for (CollectiveKind kind :
       {CollectiveKind::kAllgather, CollectiveKind::kBroadcast,
        CollectiveKind::kAlltoall, CollectiveKind::kReducescatter,
        CollectiveKind::kBarrier}) {
    if (name == CollectiveKindName(kind)) return kind;
  }
  return CollectiveKind::kAllreduce;
}

void SetOptions(const CallOptions& options, Request* request) {
  if (options.op < 0 || options.op > 5) {
    throw py::value_error("`op` must be a ReduceOp. Received: " +
                          std::to_string(options.op));
  }
  request->op = static_cast<ReduceOp>(options.op);
  request->prescale = options.prescale;
  request->postscale = options.postscale;
  RaiseIfError(ToWireFormat(options.wire_format, &request->wire_format));
  request->root_rank = options.root_rank;
  if (options.splits.has_value()) {
    if (options.splits->empty()) {
      throw py::value_error("`splits` must not be empty");
    }
    request->splits = *options.splits;
  }
}

// Returns the arrays if results can be written into them, else raises.
Arrays CheckedOutputs(const Arrays& arrays) {
  for (const py::array& array : arrays) {
    if (!(array.flags() & py::array::c_style) || !array.writeable()) {
      throw py::value_error(
          "arrays must be C-contiguous and writable to be reduced in place");
    }
  }
  return arrays;
}

}  // namespace

// An output that the engine asks for. Allocate does without the GIL: the engine
// holds its lock then, may be running a collective, and must not wait for the
// thread that has the GIL.
class NewOutput {
 public:
  Status Allocate(const Shape& shape, DataType dtype, void** memory) {
    const size_t num_bytes =
        static_cast<size_t>(NumElements(shape)) * ElementBytes(dtype);
    shape_ = shape;
    memory_.reset(std::malloc(std::max<size_t>(num_bytes, 1)));
    if (memory_ == nullptr) {
      return Status::Internal("no memory for " + std::to_string(num_bytes) +
                              " bytes");
    }
    AdviseHugePages(memory_.get(), num_bytes);
    *memory = memory_.get();
    return Status::Ok();
  }

  // Returns an array that owns the memory. The caller has the GIL.
  py::array Take(const py::dtype& dtype) {
    const py::capsule owner(memory_.get(), [](void* p) { std::free(p); });
    return py::array(dtype, shape_, {}, memory_.release(), owner);
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  Shape shape_;
  std::unique_ptr<void, Free> memory_;
};

namespace {

bool HasShapesOfInputs(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce ||
         kind == CollectiveKind::kBroadcast;
}

}  // namespace

// Where the engine puts what it alone knows. It outlives the caller.
struct ArrayCall::Results {
  std::vector<NewOutput> outputs;
  std::vector<int64_t> received;
};

struct ArrayCall::State {
  std::shared_ptr<PendingCall> pending;
  std::shared_ptr<Results> results;
  Arrays inputs;
  Arrays outputs;
  bool has_all = false;  // the outputs, and the engine has ended
};

ArrayCall::ArrayCall(const std::string& kind, const std::string& name,
                     const Arrays& arrays, const CallOptions& options)
    : state_(std::make_unique<State>()) {
  Request request = MakeRequest(KindOf(kind), name, options.process_set_id);
  SetOptions(options, &request);
  const bool is_shaped = HasShapesOfInputs(request.kind);
  if (options.in_place && !is_shaped) {
    throw py::value_error(std::string(CollectiveKindName(request.kind)) +
                          " cannot work in place");
  }
  state_->inputs =
      options.in_place ? CheckedOutputs(arrays) : Contiguous(arrays);
  std::vector<DataType> dtypes;
  for (const py::array& input : state_->inputs) {
    RequestTensor tensor;
    tensor.dtype = CheckedDataType(input, request);
    tensor.shape = ShapeOf(input);
    tensor.input = input.data();
    if (is_shaped) {
      state_->outputs.push_back(
          options.in_place ? input : EmptyLike(input, tensor.shape));
      tensor.output = state_->outputs.back().mutable_data();
    }
    dtypes.push_back(tensor.dtype);
    request.tensors.push_back(std::move(tensor));
  }
  const auto results = std::make_shared<Results>();
  state_->results = results;
  if (!is_shaped) {
    results->outputs = std::vector<NewOutput>(arrays.size());
    request.allocate_output = [results, dtypes = std::move(dtypes)](
                                  size_t index, const Shape& shape,
                                  void** memory) {
      return results->outputs[index].Allocate(shape, dtypes[index], memory);
    };
  }
  if (request.kind == CollectiveKind::kAlltoall) {
    request.take_values = [results](const std::vector<int64_t>& values) {
      results->received = values;
      return Status::Ok();
    };
  }
  state_->pending = Begin(std::move(request));
}

ArrayCall::~ArrayCall() {
  if (state_->pending == nullptr || state_->has_all) return;
  auto arrays = std::make_unique<Arrays>(std::move(state_->inputs));
  arrays->insert(arrays->end(), state_->outputs.begin(), state_->outputs.end());
  state_->pending->Leave(std::move(arrays));
}

bool ArrayCall::is_done() const { return state_->pending->is_done(); }

Arrays ArrayCall::Wait() {
  RaiseIfError(state_->pending->Wait());
  if (!state_->has_all && state_->outputs.empty()) {
    for (size_t i = 0; i < state_->inputs.size(); ++i) {
      state_->outputs.push_back(
          state_->results->outputs[i].Take(state_->inputs[i].dtype()));
    }
  }
  state_->has_all = true;
  return state_->outputs;
}

std::vector<int64_t> ArrayCall::received() const {
  return state_->results->received;
}

void Barrier(const std::string& name, int32_t process_set_id) {
  SubmitAndWait(MakeRequest(CollectiveKind::kBarrier, name, process_set_id));
}

void RefuseCollective(const std::string& kind, const std::string& name,
                      int32_t process_set_id, const std::string& why) {
  Request request = MakeRequest(
      KindOf(kind), name.empty() ? kWholeProgram : name, process_set_id);
  request.failure = Status::InvalidArgument(why);
  if (request.kind != CollectiveKind::kBarrier) request.tensors.resize(1);
  // It fails: that is its purpose.
  static_cast<void>(Begin(std::move(request))->Wait());
}

int64_t Join(int32_t process_set_id, bool average_over_active) {
  Request request = MakeRequest(CollectiveKind::kJoin, "join", process_set_id);
  request.average_over_active = average_over_active;
  const auto last = std::make_shared<int64_t>(-1);
  request.take_values = [last](const std::vector<int64_t>& values) {
    *last = values[0];
    return Status::Ok();
  };
  SubmitAndWait(std::move(request));
  return *last;
}

}  // namespace hvd
