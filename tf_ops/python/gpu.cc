#include "tf_ops/python/gpu.h"

#include <pybind11/stl.h>

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tf_ops/engine/gpu_split.h"
#include "tf_ops/gpu/gpu.h"
#include "tf_ops/gpu/libraries.h"
#include "tf_ops/process/global_engine.h"
#include "tf_ops/python/raise.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace hvd {
namespace {

// Addresses of input and output (0: see `allocate`), dtype, shape.
using GpuTensor = std::tuple<uintptr_t, uintptr_t, std::string, Shape>;

void* AsPointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

// A call that has begun. The engine ends it on any thread; one Python thread
// may wait for it.
class GpuCall {
 public:
  GpuCall() : future_(promise_.get_future()) {}

  void End(const Status& status) {
    is_done_.store(true);
    promise_.set_value(status);
  }
  void SetReceived(std::vector<int64_t> rows) { received_ = std::move(rows); }

  bool is_done() const { return is_done_.load(); }
  void Wait() {
    if (!waited_) {
      py::gil_scoped_release release;
      outcome_ = future_.get();
    }
    waited_ = true;
    RaiseIfError(outcome_);
  }
  std::vector<int64_t> received() const { return received_; }

 private:
  std::promise<Status> promise_;
  std::future<Status> future_;
  std::atomic<bool> is_done_{false};
  bool waited_ = false;
  Status outcome_;
  std::vector<int64_t> received_;  // written before the promise
};

CollectiveKind KindFromName(const std::string& name) {
  for (CollectiveKind kind :
       {CollectiveKind::kAllreduce, CollectiveKind::kAllgather,
        CollectiveKind::kBroadcast, CollectiveKind::kAlltoall,
        CollectiveKind::kReducescatter, CollectiveKind::kBarrier}) {
    if (name == CollectiveKindName(kind)) return kind;
  }
  throw py::value_error("gpu_submit has no collective " + name);
}

RequestTensor AsRequestTensor(const GpuTensor& from) {
  RequestTensor tensor;
  tensor.input = AsPointer(std::get<0>(from));
  tensor.output = AsPointer(std::get<1>(from));
  if (!DataTypeFromName(std::get<2>(from), &tensor.dtype)) {
    throw py::type_error("collectives do not support dtype " +
                         std::get<2>(from));
  }
  tensor.shape = std::get<3>(from);
  return tensor;
}

// `allocate(index, shape)` returns the address of an output. Any thread may
// call it and release it. For tests: the engine waits for the GIL meanwhile.
void SetAllocate(py::function allocate, Request* request) {
  std::shared_ptr<py::function> shared(new py::function(std::move(allocate)),
                                       [](py::function* function) {
                                         py::gil_scoped_acquire acquire;
                                         delete function;
                                       });
  request->allocate_output = [shared](size_t index, const Shape& shape,
                                      void** output) {
    py::gil_scoped_acquire acquire;
    try {
      *output = AsPointer((*shared)(index, shape).cast<uintptr_t>());
    } catch (const std::exception& error) {
      return Status::Internal(error.what());
    }
    return Status::Ok();
  };
}

std::shared_ptr<GpuCall> Submit(const std::string& kind,
                                const std::string& name,
                                const std::vector<GpuTensor>& tensors,
                                int ordinal, uintptr_t stream,
                                const py::kwargs& options) {
  Request request;
  request.kind = KindFromName(kind);
  request.name = name;
  request.gpu.ordinal = ordinal;
  request.gpu.stream = AsPointer(stream);
  for (const GpuTensor& one : tensors) {
    request.tensors.push_back(AsRequestTensor(one));
  }
  for (const auto& [key, value] : options) {
    const std::string option = py::str(key);
    if (option == "op") {
      request.op = static_cast<ReduceOp>(value.cast<int>());
    } else if (option == "root_rank") {
      request.root_rank = value.cast<int32_t>();
    } else if (option == "prescale") {
      request.prescale = value.cast<double>();
    } else if (option == "postscale") {
      request.postscale = value.cast<double>();
    } else if (option == "wire_format") {
      RaiseIfError(ToWireFormat(value.cast<int>(), &request.wire_format));
    } else if (option == "average") {
      request.average = value.cast<bool>();
    } else if (option == "splits") {
      request.splits = value.cast<std::vector<int64_t>>();
    } else if (option == "process_set_id") {
      request.process_set_id = value.cast<int32_t>();
    } else if (option == "in_stream_order") {
      request.gpu.done_in_stream_order = value.cast<bool>();
    } else if (option == "allocate") {
      SetAllocate(value.cast<py::function>(), &request);
    } else {
      throw py::type_error("gpu_submit has no option " + option);
    }
  }
  auto call = std::make_shared<GpuCall>();
  request.take_values = [call](const std::vector<int64_t>& rows) {
    call->SetReceived(rows);
    return Status::Ok();
  };
  request.done = [call](const Status& status) { call->End(status); };
  py::gil_scoped_release release;
  SubmitGlobal(std::move(request));
  return call;
}

// Makes the communicator of a process set, in a barrier of all ranks.
void SplitOff(int32_t process_set_id, const std::string& name, int ordinal) {
  const std::shared_ptr<Engine> engine = EngineOf(process_set_id);
  Request request;
  request.kind = CollectiveKind::kBarrier;
  request.name = name;
  request.gpu.ordinal = ordinal;
  request.with_communicator =
      SplitInto(engine == nullptr ? nullptr : engine->options().gpu.split);
  auto promise = std::make_shared<std::promise<Status>>();
  request.done = [promise](const Status& status) {
    promise->set_value(status);
  };
  RaiseIfError(WithoutGil([&] {
    SubmitGlobal(std::move(request));
    return promise->get_future().get();
  }));
}

// Returns the version and path of a library; raises the reason if it has none.
std::string Describe(Status (*describe)(std::string*)) {
  std::string text;
  RaiseIfError(describe(&text));
  return text;
}

}  // namespace

void DefineGpu(py::module_* m) {
  py::class_<GpuCall, std::shared_ptr<GpuCall>>(*m, "GpuCall")
      .def_property_readonly("is_done", &GpuCall::is_done)
      .def_property_readonly("received", &GpuCall::received,
                             "Alltoall: rows from each rank, after wait().")
      .def("wait", &GpuCall::Wait, "Blocks until the call has ended; raises.");
  m->def("gpu_submit", &Submit, "kind"_a, "name"_a, "tensors"_a, "ordinal"_a,
         "stream"_a,
         "Begins a collective over GPU memory, given by address, behind the "
         "work queued on `stream`; returns a GpuCall.");
  m->def(
      "gpu_set_libraries",
      [](std::string cuda_runtime, std::string nccl,
         std::vector<std::string> cuda_runtime_wheels,
         std::vector<std::string> nccl_wheels) {
        SetGpuLibraryPaths({std::move(cuda_runtime), std::move(nccl),
                            std::move(cuda_runtime_wheels),
                            std::move(nccl_wheels)});
      },
      py::kw_only(), "cuda_runtime"_a, "nccl"_a, "cuda_runtime_wheels"_a,
      "nccl_wheels"_a, "Sets where to look for CUDA and NCCL.");
  m->def("gpu_split", &SplitOff, "process_set_id"_a, "name"_a, "ordinal"_a,
         "Splits a process set's communicator off that of all ranks, which "
         "must have been used; all ranks call this.");
  m->def("gpu_count", &Gpu::Count, "GPUs that this process sees; 0: no CUDA.");
  m->def("gpu_cuda_version", [] { return Describe(&DescribeCudaRuntime); });
  m->def("gpu_nccl_version", [] { return Describe(&DescribeNccl); });
}

}  // namespace hvd
