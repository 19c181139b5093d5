// A NCCL over host memory and threads: ranks may be threads or processes of one
// host. Unless a communicator blocks, a thread launches each group later. If a
// peer dies, its collectives never end, until they are aborted.
//
// Collectives send and receive through a ring of bytes for each pair of ranks,
// and sum in rank order. What NCCL forbids is an error here, and is counted:
// fakeNcclNumMisuses().
//
// Setting: FAKE_NCCL_VERSION (22707).
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/fake/fake_nccl_work.h"

namespace fake {
namespace {

constexpr int kInvalidArgument = 4;
constexpr int kInvalidUsage = 5;

std::atomic<int> num_misuses{0};
std::atomic<int> injected_error{0};
std::atomic<int> late_device{-1};
std::atomic<int64_t> late_us{0};
std::atomic<int> hanging_device{-1};  // its aborts hang
std::atomic<int64_t> hang_us{0};
std::atomic<bool> is_deaf{false};
std::atomic<int> held_device{-1};  // its groups wait for peers
std::atomic<int> num_held{0};
std::atomic<int64_t> call_us{0};  // how long each call of a group takes
std::atomic<int> num_early_frees{0};
std::atomic<int> num_premultiplied{0};

int Version() {
  static const int version =
      static_cast<int>(Setting("FAKE_NCCL_VERSION", 22707));
  return version;
}

// What ncclComm_t points at; running work keeps the Comm alive.
struct Handle {
  std::shared_ptr<Comm> comm;
};

thread_local int group_depth = 0;
thread_local std::vector<Call> group;
thread_local int group_error = 0;

// Launches a group of one communicator and one stream, as hvd_keras uses it.
int LaunchGroup() {
  std::vector<Call> calls = std::move(group);
  group.clear();
  const int error = std::exchange(group_error, 0);
  if (error != 0) return error;
  if (calls.empty()) return hvd::kNcclSuccess;
  const std::shared_ptr<Comm> comm = calls[0].comm;
  Stream* const stream = calls[0].stream;
  for (const Call& call : calls) {
    if (call.comm != comm || call.stream != stream) {
      return Misuse("a group on two communicators or streams");
    }
  }
  if (comm->device == held_device.load()) num_held.fetch_add(1);
  while (comm->device == held_device.load()) {
    if (comm->aborted.load()) return kInvalidUsage;
    ::usleep(1000);
  }
  ::usleep(static_cast<useconds_t>(call_us.load()) *
           static_cast<useconds_t>(calls.size()));
  comm->num_pending.fetch_add(1);
  if (comm->blocks) {
    auto work = std::make_shared<Work>(std::move(calls));
    stream->Push([work] { work->Run(); });
    return hvd::kNcclSuccess;
  }
  comm->state.store(hvd::kNcclInProgress);
  std::thread([comm, stream, calls = std::move(calls)]() mutable {
    SleepSome(Setting("FAKE_GPU_JITTER_US", 0));
    auto work = std::make_shared<Work>(std::move(calls));
    if (!comm->aborted.load()) stream->Push([work] { work->Run(); });
    if (comm->device == late_device.load()) {
      ::usleep(static_cast<useconds_t>(late_us.load()));
    }
    comm->state.store(hvd::kNcclSuccess);
  }).detach();
  return hvd::kNcclInProgress;
}

bool DataTypeOf(int nccl_type, hvd::DataType* dtype) {
  constexpr hvd::DataType kTypes[] = {
      hvd::DataType::kInt8,         hvd::DataType::kUint8,
      hvd::DataType::kInt32,        hvd::DataType::kUint32,
      hvd::DataType::kInt64,        hvd::DataType::kUint64,
      hvd::DataType::kFloat16,      hvd::DataType::kFloat32,
      hvd::DataType::kFloat64,      hvd::DataType::kBfloat16,
      hvd::DataType::kFloat8E4m3fn, hvd::DataType::kFloat8E5m2,
  };
  const int num_types = Version() < hvd::kFirstNcclWithFloat8 ? 10 : 12;
  if (nccl_type < 0 || nccl_type >= num_types) return false;
  *dtype = kTypes[nccl_type];
  return true;
}

// `value` as NCCL keeps it.
double Rounded(int nccl_type, double value) {
  float single = static_cast<float>(value);
  if (nccl_type == hvd::kNcclFloat16 || nccl_type == hvd::kNcclBfloat16) {
    const auto dtype = nccl_type == hvd::kNcclFloat16
                           ? hvd::DataType::kFloat16
                           : hvd::DataType::kBfloat16;
    uint16_t half = 0;
    hvd::NarrowToHalves(dtype, &single, &half, 1);
    hvd::WidenHalves(dtype, &half, &single, 1);
  }
  return nccl_type == hvd::kNcclFloat64 ? value : single;
}

int ResolveOp(Comm* comm, int nccl_type, int op, hvd::ReduceSpec* spec) {
  constexpr hvd::ReduceOp kOps[] = {
      hvd::ReduceOp::kSum, hvd::ReduceOp::kProduct, hvd::ReduceOp::kMax,
      hvd::ReduceOp::kMin, hvd::ReduceOp::kAverage};
  spec->num_ranks = comm->size;
  const bool multiplies = op == hvd::kNcclAvg || op >= 5;
  if (multiplies && comm->size == 1 && hvd::IsFloat8(spec->dtype)) {
    return kInvalidArgument;  // as NCCL 2.30 does
  }
  if (op < 5) {
    spec->op = kOps[op];
    if (op == hvd::kNcclAvg && hvd::IsFloating(spec->dtype) &&
        !hvd::IsFloat8(spec->dtype)) {  // as NCCL does
      spec->op = hvd::ReduceOp::kSum;
      spec->prescale = Rounded(nccl_type, 1.0 / comm->size);
    }
    if (op == hvd::kNcclAvg) num_premultiplied.fetch_add(1);
    return 0;
  }
  num_premultiplied.fetch_add(1);
  std::lock_guard<std::mutex> lock(comm->mu);
  const size_t index = static_cast<size_t>(op - 5);
  if (index >= comm->ops.size() || comm->ops[index] == nullptr) {
    return Misuse("an op that does not exist");
  }
  if (comm->ops[index]->dtype != nccl_type) return Misuse("an op's dtype");
  spec->op = hvd::ReduceOp::kSum;
  spec->prescale = comm->ops[index]->factor;
  return 0;
}

int Enqueue(const char* name, Kind kind, const void* in, void* out,
            size_t count, int nccl_type, int op, int peer, void* handle,
            void* stream) {
  Log(name);
  if (handle == nullptr) return kInvalidArgument;
  Call call;
  call.kind = kind;
  call.comm = static_cast<Handle*>(handle)->comm;
  call.stream = StreamOf(stream);
  call.in = static_cast<const char*>(in);
  call.out = static_cast<char*>(out);
  call.num_elements = count;
  call.peer = peer;
  int error = 0;
  if (!DataTypeOf(nccl_type, &call.spec.dtype) || peer < 0 ||
      peer >= call.comm->size) {
    error = kInvalidArgument;
  } else if (call.comm->state.load() != hvd::kNcclSuccess) {
    error = Misuse("a call while the communicator is in progress");
  } else if (CurrentDevice() != call.comm->device ||
             call.stream->device() != call.comm->device) {
    error = Misuse("a call on another device");
  } else {
    error = ResolveOp(call.comm.get(), nccl_type, op, &call.spec);
  }
  if (error != 0) {
    group_error = group_depth > 0 ? error : 0;
    return error;
  }
  group.push_back(std::move(call));
  return group_depth > 0 ? hvd::kNcclSuccess : LaunchGroup();
}

double FactorOf(int nccl_type, const void* scalar) {
  if (nccl_type == hvd::kNcclFloat64)
    return *static_cast<const double*>(scalar);
  if (nccl_type == hvd::kNcclFloat32) return *static_cast<const float*>(scalar);
  if (nccl_type >= hvd::kNcclFloat8E4m3) {
    return Float8Value(nccl_type == hvd::kNcclFloat8E4m3
                           ? hvd::DataType::kFloat8E4m3fn
                           : hvd::DataType::kFloat8E5m2,
                       *static_cast<const uint8_t*>(scalar));
  }
  float wide = 0;
  hvd::WidenHalves(nccl_type == hvd::kNcclFloat16 ? hvd::DataType::kFloat16
                                                  : hvd::DataType::kBfloat16,
                   scalar, &wide, 1);
  return wide;
}

}  // namespace

// Aborting frees memory that kernels of the peers use: they must end as well.
void AwaitKernelsOfPeers(Comm* comm) {
  if (comm->region == nullptr || comm->size > kMaxSplitRanks) return;
  for (int peer = 0; peer < comm->size; ++peer) {
    for (int i = 0; comm->region->is_running[peer].load() != 0; ++i) {
      if (i == 100) {
        num_early_frees.fetch_add(1);
        return;
      }
      ::usleep(1000);
    }
  }
}

int Misuse(const char* what) {
  std::fprintf(stderr, "fake NCCL: misuse: %s\n", what);
  num_misuses.fetch_add(1);
  return kInvalidUsage;
}

}  // namespace fake

using fake::Enqueue;
using fake::Handle;
using fake::Kind;
using fake::Log;

extern "C" {

int ncclGetVersion(int* version) {
  *version = fake::Version();
  return 0;
}

const char* ncclGetErrorString(int result) {
  switch (result) {
    case 0:
      return "no error";
    case 4:
      return "invalid argument";
    case 5:
      return "invalid usage";
    case 6:
      return "remote process exited or there was a network error";
    default:
      return "internal error";
  }
}

const char* ncclGetLastError(void*) { return ""; }

int ncclGetUniqueId(hvd::NcclUniqueId* id) {
  Log("ncclGetUniqueId");
  static std::atomic<int> counter{0};
  std::memset(id->bytes, 0, sizeof(id->bytes));
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::snprintf(id->bytes, sizeof(id->bytes), "/fake_nccl_%d_%d_%lld",
                static_cast<int>(getpid()), counter.fetch_add(1),
                static_cast<long long>(now));
  return 0;
}

int ncclCommInitRankConfig(void** comm, int size, hvd::NcclUniqueId id,
                           int rank, hvd::NcclConfig* config) {
  Log("ncclCommInitRankConfig");
  if (config->magic != 0xcafebeef || config->size < sizeof(*config) ||
      config->version < 21800 || config->blocking < 0 || config->blocking > 1) {
    return fake::Misuse("a bad config");
  }
  if (rank < 0 || rank >= size) return fake::kInvalidArgument;
  auto* const handle = new Handle{std::make_shared<fake::Comm>()};
  fake::Comm* const made = handle->comm.get();
  made->rank = rank;
  made->size = size;
  made->device = fake::CurrentDevice();
  made->name = id.bytes;
  made->blocks = config->blocking == 1;
  *comm = handle;
  if (made->blocks) {
    made->state.store(hvd::kNcclSuccess);
    return fake::Rendezvous(made) ? hvd::kNcclSuccess : 3;
  }
  std::thread([keep = handle->comm] {
    const bool ok = fake::Rendezvous(keep.get());
    keep->state.store(ok ? hvd::kNcclSuccess : 3);
  }).detach();
  return hvd::kNcclInProgress;
}

int ncclCommSplit(void* comm, int color, int, void** made,
                  hvd::NcclConfig* config) {
  Log("ncclCommSplit");
  const std::shared_ptr<fake::Comm> parent = static_cast<Handle*>(comm)->comm;
  if (config->magic != 0xcafebeef || config->blocking != 0) {
    return fake::Misuse("a bad config");
  }
  if (parent->state.load() != 0 || parent->num_pending.load() > 0) {
    return fake::Misuse("a split with something in flight");
  }
  const int split = parent->num_splits++;
  if (split >= fake::kMaxSplits || parent->size > fake::kMaxSplitRanks) {
    return fake::kInvalidUsage;
  }
  *made = nullptr;
  parent->state.store(hvd::kNcclInProgress);
  std::thread([=] {
    auto part = fake::SplitOff(parent.get(), split, color >= 0);
    if (part != nullptr) *made = new Handle{std::move(part)};
    parent->state.store(hvd::kNcclSuccess);
  }).detach();
  return hvd::kNcclInProgress;
}

int ncclCommFinalize(void* comm) {
  Log("ncclCommFinalize");
  fake::Comm* const c = static_cast<Handle*>(comm)->comm.get();
  if (c->state.load() != 0) return fake::Misuse("finalize while in progress");
  return 0;
}

int ncclCommDestroy(void* comm) {
  Log("ncclCommDestroy");
  delete static_cast<Handle*>(comm);
  return 0;
}

int ncclCommAbort(void* comm) {
  Log("ncclCommAbort");
  fake::Comm* const c = static_cast<Handle*>(comm)->comm.get();
  const bool hangs = c->device == fake::hanging_device.load();
  const auto hang = [] {
    ::usleep(static_cast<useconds_t>(fake::hang_us.load()));
  };
  if (hangs && fake::is_deaf.load()) hang();
  c->aborted.store(true);
  if (hangs && !fake::is_deaf.load()) hang();
  fake::AwaitKernelsOfPeers(c);
  delete static_cast<Handle*>(comm);
  return 0;
}

int ncclCommGetAsyncError(void* comm, int* result) {
  *result = static_cast<Handle*>(comm)->comm->state.load();
  const int injected = fake::injected_error.load();
  if (injected != 0) *result = injected;
  return 0;
}

int ncclGroupStart() {
  ++fake::group_depth;
  return 0;
}

int ncclGroupEnd() {
  if (fake::group_depth == 0) return fake::Misuse("a group that did not begin");
  return --fake::group_depth > 0 ? 0 : fake::LaunchGroup();
}

int ncclAllReduce(const void* in, void* out, size_t count, int dtype, int op,
                  void* comm, void* stream) {
  return Enqueue("ncclAllReduce", Kind::kAllReduce, in, out, count, dtype, op,
                 0, comm, stream);
}

int ncclReduce(const void* in, void* out, size_t count, int dtype, int op,
               int root, void* comm, void* stream) {
  return Enqueue("ncclReduce", Kind::kReduce, in, out, count, dtype, op, root,
                 comm, stream);
}

int ncclBroadcast(const void* in, void* out, size_t count, int dtype, int root,
                  void* comm, void* stream) {
  return Enqueue("ncclBroadcast", Kind::kBroadcast, in, out, count, dtype, 0,
                 root, comm, stream);
}

int ncclReduceScatter(const void* in, void* out, size_t count, int dtype,
                      int op, void* comm, void* stream) {
  return Enqueue("ncclReduceScatter", Kind::kReduceScatter, in, out, count,
                 dtype, op, 0, comm, stream);
}

int ncclAllGather(const void* in, void* out, size_t count, int dtype,
                  void* comm, void* stream) {
  return Enqueue("ncclAllGather", Kind::kAllGather, in, out, count, dtype, 0, 0,
                 comm, stream);
}

int ncclSend(const void* in, size_t count, int dtype, int peer, void* comm,
             void* stream) {
  return Enqueue("ncclSend", Kind::kSend, in, nullptr, count, dtype, 0, peer,
                 comm, stream);
}

int ncclRecv(void* out, size_t count, int dtype, int peer, void* comm,
             void* stream) {
  return Enqueue("ncclRecv", Kind::kRecv, nullptr, out, count, dtype, 0, peer,
                 comm, stream);
}

int ncclRedOpCreatePreMulSum(int* op, void* scalar, int dtype, int residence,
                             void* comm) {
  if (residence != hvd::kNcclScalarHostImmediate) {
    return fake::kInvalidArgument;
  }
  fake::Comm* const c = static_cast<Handle*>(comm)->comm.get();
  std::lock_guard<std::mutex> lock(c->mu);
  c->ops.push_back(std::make_unique<fake::PreMul>(
      fake::PreMul{dtype, fake::FactorOf(dtype, scalar)}));
  *op = 4 + static_cast<int>(c->ops.size());
  return 0;
}

int ncclRedOpDestroy(int op, void* comm) {
  fake::Comm* const c = static_cast<Handle*>(comm)->comm.get();
  std::lock_guard<std::mutex> lock(c->mu);
  const size_t index = static_cast<size_t>(op - 5);
  if (index >= c->ops.size() || c->ops[index] == nullptr) {
    return fake::Misuse("an op is destroyed twice");
  }
  c->ops[index] = nullptr;
  return 0;
}

// ---- For tests alone ----

int fakeNcclNumMisuses() { return fake::num_misuses.load(); }

// From now on communicators report `result` as their error; 0: none.
void fakeNcclInject(int result) { fake::injected_error.store(result); }

// From now on a communicator on `device` stays in progress for so long after
// each launch, which runs meanwhile.
void fakeNcclTellLate(int device, int64_t microseconds) {
  fake::late_us.store(microseconds);
  fake::late_device.store(device);
}

// From now on aborts on `device` hang for so long, -1: on none. Meanwhile
// kernels go on if `is_deaf`.
void fakeNcclHangAborts(int device, int64_t microseconds, int is_deaf) {
  fake::hang_us.store(microseconds);
  fake::is_deaf.store(is_deaf != 0);
  fake::hanging_device.store(device);
}

// From now on ncclGroupEnd on `device` waits, as for a peer that does not come;
// -1: on none.
void fakeNcclHoldGroups(int device) { fake::held_device.store(device); }

// How many have waited so.
int fakeNcclNumHeld() { return fake::num_held.load(); }

// From now on each call of a group takes so long.
void fakeNcclSlowCalls(int64_t microseconds) {
  fake::call_us.store(microseconds);
}

// How many collectives NVSwitch could not sum, for they multiply first.
int fakeNcclNumPremultiplied() { return fake::num_premultiplied.load(); }

// How many aborts have freed memory that a kernel of a peer was using.
int fakeNcclNumEarlyFrees() { return fake::num_early_frees.load(); }

}  // extern "C"
