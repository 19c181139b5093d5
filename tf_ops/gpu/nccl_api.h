// The part of NCCL that we use, declared by hand: it is opened at run time.
#pragma once

#include <climits>
#include <cstddef>

#include "tf_ops/gpu/cuda_api.h"

namespace hvd {

using NcclComm = void*;  // ncclComm_t

// Values of ncclResult_t.
inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclInProgress = 7;

// Values of ncclRedOp_t.
inline constexpr int kNcclSum = 0;
inline constexpr int kNcclProd = 1;
inline constexpr int kNcclMax = 2;
inline constexpr int kNcclMin = 3;
inline constexpr int kNcclAvg = 4;

// Values of ncclDataType_t.
inline constexpr int kNcclInt8 = 0;
inline constexpr int kNcclUint8 = 1;
inline constexpr int kNcclInt32 = 2;
inline constexpr int kNcclUint32 = 3;
inline constexpr int kNcclInt64 = 4;
inline constexpr int kNcclUint64 = 5;
inline constexpr int kNcclFloat16 = 6;
inline constexpr int kNcclFloat32 = 7;
inline constexpr int kNcclFloat64 = 8;
inline constexpr int kNcclBfloat16 = 9;
inline constexpr int kNcclFloat8E4m3 = 10;  // since kFirstNcclWithFloat8
inline constexpr int kNcclFloat8E5m2 = 11;

inline constexpr int kNcclScalarHostImmediate = 1;
inline constexpr int kNcclSplitNoColor = -1;  // for ranks that join no part

struct NcclUniqueId {
  char bytes[128];
};

// ncclConfig_t of NCCL 2.18. Later versions accept it and use their defaults
// for the fields that they have added.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;  // INT_MIN: as NCCL_* say, or a default
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int padding = INT_MIN;  // later versions read a setting here
};

// Before it, an abort could not end a call of another thread that waits for a
// rank, and could free what that call used.
inline constexpr int kMinNcclVersion = 22300;
inline constexpr int kFirstNcclWithFloat8 = 22400;
inline constexpr int kFirstNcclWithSharing = 23000;  // of a GPU, by ranks

// The functions of an opened NCCL.
struct NcclApi {
  int version = 0;  // 22707: 2.27.7
  int (*GetVersion)(int* version);
  const char* (*GetErrorString)(int result);
  const char* (*GetLastError)(NcclComm);  // null: of this process
  int (*GetUniqueId)(NcclUniqueId*);
  int (*CommInitRankConfig)(NcclComm*, int size, NcclUniqueId, int rank,
                            NcclConfig*);
  // All ranks of the first call it; the second is set when the first is done.
  int (*CommSplit)(NcclComm, int color, int key, NcclComm*, NcclConfig*);
  int (*CommFinalize)(NcclComm);
  int (*CommDestroy)(NcclComm);
  int (*CommAbort)(NcclComm);
  int (*CommGetAsyncError)(NcclComm, int* result);
  int (*GroupStart)();
  int (*GroupEnd)();
  int (*AllReduce)(const void* in, void* out, size_t count, int dtype, int op,
                   NcclComm, CudaStream);
  int (*Reduce)(const void* in, void* out, size_t count, int dtype, int op,
                int root, NcclComm, CudaStream);
  int (*Broadcast)(const void* in, void* out, size_t count, int dtype, int root,
                   NcclComm, CudaStream);
  int (*ReduceScatter)(const void* in, void* out, size_t out_count, int dtype,
                       int op, NcclComm, CudaStream);
  int (*AllGather)(const void* in, void* out, size_t in_count, int dtype,
                   NcclComm, CudaStream);
  int (*Send)(const void* in, size_t count, int dtype, int peer, NcclComm,
              CudaStream);
  int (*Recv)(void* out, size_t count, int dtype, int peer, NcclComm,
              CudaStream);
  int (*RedOpCreatePreMulSum)(int* op, void* scalar, int dtype, int residence,
                              NcclComm);
  int (*RedOpDestroy)(int op, NcclComm);
};

}  // namespace hvd
