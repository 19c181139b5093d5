// A fake GPU for a TensorFlow without GPUs, on which our kernels for GPUs run.
// It uses the fake CUDA of tests/gpu/fake; HVD_CUDART_LIBRARY names its
// library. TensorFlow has hardly any kernels of its own there.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

struct SP_Stream_st {
  void* stream;
};
struct SP_Event_st {
  void* event;
};
struct SP_Timer_st {};

namespace {

using Bool = TF_Bool;

int Ordinal() {  // as CUDA counts
  const char* const text = std::getenv("FAKE_DEVICE_ORDINAL");
  return text == nullptr ? 0 : std::atoi(text);
}

template <typename... P>
int Call(const char* name, P... arguments) {
  static void* const library =
      dlopen(std::getenv("HVD_CUDART_LIBRARY"), RTLD_NOW);
  static auto* const set_device =
      reinterpret_cast<int (*)(int)>(dlsym(library, "cudaSetDevice"));
  if (Ordinal() != 0) set_device(Ordinal());
  auto* const function = reinterpret_cast<int (*)(P...)>(dlsym(library, name));
  return function(arguments...);
}

void* first_stream = nullptr;  // the one that kernels work on

void Copy(SP_Stream stream, void* to, const void* from, uint64_t size) {
  Call("cudaMemcpyAsync", to, from, static_cast<size_t>(size), 4,
       stream->stream);
}

void Allocate(const SP_Device*, uint64_t size, int64_t,
              SP_DeviceMemoryBase* m) {
  m->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  m->size = size;
  void** const memory = &m->opaque;
  if (Call("cudaMalloc", memory, static_cast<size_t>(size)) != 0) {
    m->opaque = nullptr;
    m->size = 0;
  }
}

TF_Bool MemoryUsage(const SP_Device*, int64_t* free, int64_t* total) {
  *free = *total = int64_t{1} << 28;
  return true;
}

void CreateStream(const SP_Device*, SP_Stream* stream, TF_Status*) {
  *stream = new SP_Stream_st();
  void** const made = &(*stream)->stream;
  Call("cudaStreamCreateWithPriority", made, 1U, 0);
  if (first_stream == nullptr) first_stream = *made;
}

void CreateEvent(const SP_Device*, SP_Event* event, TF_Status*) {
  *event = new SP_Event_st();
  void** const made = &(*event)->event;
  Call("cudaEventCreateWithFlags", made, 2U);
}

void Record(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status*) {
  Call("cudaEventRecord", event->event, stream->stream);
}

void WaitFor(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status*) {
  Call("cudaStreamWaitEvent", stream->stream, event->event, 0U);
}

void Depend(const SP_Device* device, SP_Stream dependent, SP_Stream other,
            TF_Status* status) {
  SP_Event event = nullptr;
  CreateEvent(device, &event, status);
  Record(device, other, event, status);
  WaitFor(device, dependent, event, status);
}

SE_EventStatus EventStatus(const SP_Device*, SP_Event event) {
  return Call("cudaEventQuery", event->event) == 0 ? SE_EVENT_COMPLETE
                                                   : SE_EVENT_PENDING;
}

void SynchronizeStream(const SP_Device*, SP_Stream stream, TF_Status*) {
  Call("cudaStreamSynchronize", stream->stream);
}

void SynchronizeAll() { Call("cudaDeviceSynchronize"); }

void Fill(const SP_Device* device, SP_Stream stream,
          SP_DeviceMemoryBase* location, uint8_t pattern, uint64_t size,
          TF_Status* status) {
  SynchronizeStream(device, stream, status);
  std::memset(location->opaque, pattern, size);
}

struct Callback {
  SE_StatusCallbackFn function;
  void* argument;
};

void FillExecutor(SP_StreamExecutor* e) {
  e->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  e->allocate = Allocate;
  e->deallocate = [](const SP_Device*, SP_DeviceMemoryBase* memory) {
    Call("cudaFree", memory->opaque);
    memory->opaque = nullptr;
    memory->size = 0;
  };
  e->host_memory_allocate = [](const SP_Device*, uint64_t size) {
    return std::aligned_alloc(64, (size + 63) / 64 * 64);
  };
  e->host_memory_deallocate = [](const SP_Device*, void* mem) { free(mem); };
  e->get_allocator_stats = [](const SP_Device*, SP_AllocatorStats*) {
    return Bool{false};
  };
  e->device_memory_usage = MemoryUsage;
  e->create_stream = CreateStream;
  e->destroy_stream = [](const SP_Device*, SP_Stream) {};
  e->create_stream_dependency = Depend;
  e->get_stream_status = [](const SP_Device*, SP_Stream, TF_Status*) {};
  e->create_event = CreateEvent;
  e->destroy_event = [](const SP_Device*, SP_Event) {};
  e->get_event_status = EventStatus;
  e->record_event = Record;
  e->wait_for_event = WaitFor;
  e->create_timer = [](const SP_Device*, SP_Timer* timer, TF_Status*) {
    *timer = new SP_Timer_st();
  };
  e->destroy_timer = [](const SP_Device*, SP_Timer timer) { delete timer; };
  e->start_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status*) {};
  e->stop_timer = e->start_timer;
  e->memcpy_dtoh = [](const SP_Device*, SP_Stream stream, void* to,
                      const SP_DeviceMemoryBase* from, uint64_t size,
                      TF_Status*) { Copy(stream, to, from->opaque, size); };
  e->memcpy_htod = [](const SP_Device*, SP_Stream stream,
                      SP_DeviceMemoryBase* to, const void* from, uint64_t size,
                      TF_Status*) { Copy(stream, to->opaque, from, size); };
  e->memcpy_dtod = [](const SP_Device*, SP_Stream stream,
                      SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from,
                      uint64_t size, TF_Status*) {
    Copy(stream, to->opaque, from->opaque, size);
  };
  e->sync_memcpy_dtoh = [](const SP_Device*, void* to,
                           const SP_DeviceMemoryBase* from, uint64_t size,
                           TF_Status*) {
    SynchronizeAll();
    std::memcpy(to, from->opaque, size);
  };
  e->sync_memcpy_htod = [](const SP_Device*, SP_DeviceMemoryBase* to,
                           const void* from, uint64_t size, TF_Status*) {
    SynchronizeAll();
    std::memcpy(to->opaque, from, size);
  };
  e->sync_memcpy_dtod = [](const SP_Device*, SP_DeviceMemoryBase* to,
                           const SP_DeviceMemoryBase* from, uint64_t size,
                           TF_Status*) {
    SynchronizeAll();
    std::memcpy(to->opaque, from->opaque, size);
  };
  e->block_host_for_event = [](const SP_Device*, SP_Event event, TF_Status*) {
    Call("cudaEventSynchronize", event->event);
  };
  e->block_host_until_done = SynchronizeStream;
  e->synchronize_all_activity = [](const SP_Device*, TF_Status*) {
    SynchronizeAll();
  };
  e->mem_zero = [](const SP_Device* device, SP_Stream stream,
                   SP_DeviceMemoryBase* location, uint64_t size,
                   TF_Status* status) {
    Fill(device, stream, location, 0, size, status);
  };
  e->memset = Fill;
  e->memset32 = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase*, uint32_t,
                   uint64_t, TF_Status*) { std::abort(); };
  e->host_callback = [](const SP_Device*, SP_Stream stream,
                        SE_StatusCallbackFn function, void* argument) {
    void (*const run)(void*) = [](void* pointer) {
      auto* const callback = static_cast<Callback*>(pointer);
      TF_Status* const status = TF_NewStatus();
      callback->function(callback->argument, status);
      TF_DeleteStatus(status);
      delete callback;
    };
    Call("cudaLaunchHostFunc", stream->stream, run,
         static_cast<void*>(new Callback{function, argument}));
    return Bool{true};
  };
}

void CreateDevice(const SP_Platform*, SE_CreateDeviceParams* params,
                  TF_Status*) {
  params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  params->device->ordinal = params->ordinal;
  params->device->hardware_name = "fake";
  params->device->device_vendor = "hvd_keras";
  params->device->pci_bus_id = "0000:00:00.0";
}

void FillPlatform(SP_PlatformFns* f) {
  f->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  f->get_device_count = [](const SP_Platform*, int* count, TF_Status*) {
    const char* const text = std::getenv("FAKE_DEVICE_COUNT");
    *count = text == nullptr ? 1 : std::atoi(text);
  };
  f->create_device = CreateDevice;
  f->destroy_device = [](const SP_Platform*, SP_Device*) {};
  f->create_device_fns = [](const SP_Platform*,
                            SE_CreateDeviceFnsParams* params, TF_Status*) {
    *params->device_fns = SP_DeviceFns{SP_DEVICE_FNS_STRUCT_SIZE, nullptr,
                                       nullptr, nullptr, nullptr};
  };
  f->destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  f->create_stream_executor =
      [](const SP_Platform*, SE_CreateStreamExecutorParams* params,
         TF_Status*) { FillExecutor(params->stream_executor); };
  f->destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  f->create_timer_fns = [](const SP_Platform*, SP_TimerFns* fns, TF_Status*) {
    fns->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
    fns->nanoseconds = [](SP_Timer) { return uint64_t{0}; };
  };
  f->destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
}

}  // namespace

extern "C" {

void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status*) {
  params->struct_size = SE_PLATFORM_REGISTRATION_PARAMS_STRUCT_SIZE;
  params->major_version = SE_MAJOR;
  params->minor_version = SE_MINOR;
  params->patch_version = SE_PATCH;
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "FAKE";
  params->platform->type = "GPU";
  params->platform->use_bfc_allocator = true;
  params->platform->force_memory_growth = true;
  FillPlatform(params->platform_fns);
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
}

// Stands in for the shim, which knows only TensorFlow's own GPUs.
int fake_tf_place(void*, void** stream) {
  *stream = first_stream;
  return Ordinal();
}

}  // extern "C"
