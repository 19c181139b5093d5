#include "tf_ops/python/arrays.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>

#include "tf_ops/common/huge_pages.h"
#include "tf_ops/process/global_engine.h"
#include "tf_ops/python/raise.h"

namespace py = pybind11;

namespace hvd {
namespace {

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

// Raises for an array that no collective takes.
DataType CheckedDataType(const py::array& array, const Request& request) {
  const std::string name = py::str(array.dtype().attr("name"));
  const bool is_native = array.dtype().attr("isnative").cast<bool>();
  DataType dtype;
  if (is_native && DataTypeFromName(name, &dtype)) return dtype;
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

// A call that the engine works on. If a signal handler raises, its caller
// leaves, and the arrays stay here for as long as the engine uses them.
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

  // Submits and waits without the GIL. Returns false if a signal handler has
  // raised; the exception is set then.
  bool Run(Request request, Status* status) {
    py::gil_scoped_release release;
    std::future<Status> future = result_.get_future();
    SubmitGlobal(std::move(request));
    while (future.wait_for(kSignalInterval) != std::future_status::ready) {
      py::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) return false;
    }
    *status = future.get();
    return true;
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

  static int FreeArrays(void* arrays) {
    delete static_cast<Arrays*>(arrays);
    return 0;
  }

  std::promise<Status> result_;
  std::atomic<State> state_{State::kWaiting};
  Arrays* arrays_ = nullptr;  // owned in kLeft
};

// Submits and waits without the GIL; raises what a signal handler raises. The
// request may use the memory of the arrays, but nothing else of the caller's
// stack.
Status Await(Request request, Arrays* inputs, Arrays* outputs) {
  auto call = std::make_shared<PendingCall>();
  request.done = [call](const Status& status) { call->End(status); };
  Status status;
  if (!call->Run(std::move(request), &status)) {
    auto arrays = std::make_unique<Arrays>(std::move(*inputs));
    arrays->insert(arrays->end(), outputs->begin(), outputs->end());
    call->Leave(std::move(arrays));
    throw py::error_already_set();
  }
  return status;
}

// The same; raises on error.
void SubmitAndWait(Request request, Arrays* inputs, Arrays* outputs) {
  RaiseIfError(Await(std::move(request), inputs, outputs));
}

void SubmitAndWait(Request request) {
  Arrays none;
  SubmitAndWait(std::move(request), &none, &none);
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

void SetReduceArguments(const ReduceArguments& arguments, Request* request) {
  if (arguments.op < 0 || arguments.op > 5) {
    throw py::value_error("`op` must be a ReduceOp. Received: " +
                          std::to_string(arguments.op));
  }
  request->op = static_cast<ReduceOp>(arguments.op);
  request->prescale = arguments.prescale;
  request->postscale = arguments.postscale;
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

// Runs a collective whose results have the shapes of the arrays.
Arrays RunShaped(Request request, const Arrays& arrays, bool in_place = false) {
  Arrays inputs = in_place ? CheckedOutputs(arrays) : Contiguous(arrays);
  Arrays outputs;
  for (const py::array& input : inputs) {
    outputs.push_back(in_place ? input : EmptyLike(input, ShapeOf(input)));
    RequestTensor tensor;
    tensor.dtype = CheckedDataType(input, request);
    tensor.shape = ShapeOf(input);
    tensor.input = input.data();
    tensor.output = outputs.back().mutable_data();
    request.tensors.push_back(std::move(tensor));
  }
  SubmitAndWait(std::move(request), &inputs, &outputs);
  return outputs;
}

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

// Runs a collective whose output shapes only the engine knows.
Arrays RunAllocating(Request request, const Arrays& arrays) {
  Arrays inputs = Contiguous(arrays);
  std::vector<DataType> dtypes;
  for (const py::array& input : inputs) {
    RequestTensor tensor;
    tensor.dtype = CheckedDataType(input, request);
    tensor.shape = ShapeOf(input);
    tensor.input = input.data();
    dtypes.push_back(tensor.dtype);
    request.tensors.push_back(std::move(tensor));
  }
  auto outputs = std::make_shared<std::vector<NewOutput>>(inputs.size());
  request.allocate_output = [outputs, dtypes = std::move(dtypes)](
                                size_t index, const Shape& shape,
                                void** memory) {
    return (*outputs)[index].Allocate(shape, dtypes[index], memory);
  };
  Arrays none;
  SubmitAndWait(std::move(request), &inputs, &none);
  Arrays arrays_of_outputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    arrays_of_outputs.push_back((*outputs)[i].Take(inputs[i].dtype()));
  }
  return arrays_of_outputs;
}

}  // namespace

Arrays AllreduceArrays(const std::string& name, const Arrays& arrays,
                       const ReduceArguments& arguments, int32_t process_set_id,
                       bool in_place) {
  Request request =
      MakeRequest(CollectiveKind::kAllreduce, name, process_set_id);
  SetReduceArguments(arguments, &request);
  return RunShaped(std::move(request), arrays, in_place);
}

Arrays ReducescatterArrays(const std::string& name, const Arrays& arrays,
                           const ReduceArguments& arguments,
                           int32_t process_set_id) {
  Request request =
      MakeRequest(CollectiveKind::kReducescatter, name, process_set_id);
  SetReduceArguments(arguments, &request);
  return RunAllocating(std::move(request), arrays);
}

Arrays BroadcastArrays(const std::string& name, const Arrays& arrays,
                       int root_rank, int32_t process_set_id) {
  Request request =
      MakeRequest(CollectiveKind::kBroadcast, name, process_set_id);
  request.root_rank = root_rank;
  return RunShaped(std::move(request), arrays);
}

Arrays AllgatherArrays(const std::string& name, const Arrays& arrays,
                       int32_t process_set_id) {
  return RunAllocating(
      MakeRequest(CollectiveKind::kAllgather, name, process_set_id), arrays);
}

std::pair<py::array, std::vector<int64_t>> AlltoallArray(
    const std::string& name, const py::array& array,
    const std::optional<std::vector<int64_t>>& splits, int32_t process_set_id) {
  Request request =
      MakeRequest(CollectiveKind::kAlltoall, name, process_set_id);
  if (splits.has_value()) {
    if (splits->empty()) throw py::value_error("`splits` must not be empty");
    request.splits = *splits;
  }
  const auto received = std::make_shared<std::vector<int64_t>>();
  request.take_values = [received](const std::vector<int64_t>& values) {
    *received = values;
    return Status::Ok();
  };
  const Arrays outputs = RunAllocating(std::move(request), {array});
  return {outputs[0], *received};
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
  Arrays none;
  // It fails: that is its purpose.
  static_cast<void>(Await(std::move(request), &none, &none));
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
