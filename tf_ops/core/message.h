// What ranks and the coordinator tell each other, and its encoding.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/common/types.h"
#include "tf_ops/core/request.h"

namespace hvd {

struct TensorParams {
  DataType dtype = DataType::kFloat32;
  Shape shape;
  bool operator==(const TensorParams& o) const {
    return dtype == o.dtype && shape == o.shape;
  }
};

// All of a request that ranks must agree on, and its shapes.
struct RequestParams {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  int32_t process_set_id = 0;
  ReduceOp op = ReduceOp::kSum;
  int32_t root_rank = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  bool average = false;
  std::vector<TensorParams> tensors;

  bool operator==(const RequestParams& o) const;
  int64_t num_bytes() const;
};
RequestParams ParamsOf(const Request& request);

// A run of consecutive cache ids.
struct IdRun {
  uint32_t first = 0;
  uint32_t count = 0;
};

// From a rank to the coordinator.
struct RankMessage {
  enum class Type : uint8_t {
    kRequest = 1,  // `name` and `params`: this rank is ready for it
    kReady,        // `ids`: ready for requests that all ranks know
    kDuplicate,    // `name` was submitted again while in flight
    kForgotten,    // `ids`: an eviction was seen
  };
  Type type = Type::kRequest;
  std::string name;
  RequestParams params;
  std::vector<IdRun> ids;
};

// One request of a response: known by its id, or told in full.
struct ResponseItem {
  uint32_t cached_id = 0;  // not 0: a known request, the rest is empty
  std::string name;
  uint32_t new_id = 0;  // not 0: remember the request under this id
  // Allgather: first dimensions, [tensor][rank].
  std::vector<std::vector<int64_t>> first_dims;
};

// From the coordinator to all ranks; they act on responses in this order.
struct Response {
  enum class Type : uint8_t {
    kExecute = 1,  // run `items` together
    kError,        // `items[0].name` fails with `error`
    kEvict,        // forget `ids`
  };
  Type type = Type::kExecute;
  std::vector<ResponseItem> items;
  Status error;
  std::vector<int32_t> ranks;  // kError: whom it concerns; empty: all
  std::vector<IdRun> ids;
};

// Appends the id to the last run or begins a new one.
void AppendId(uint32_t id, std::vector<IdRun>* runs);

// Appends a frame: its length and the message.
void Encode(const RankMessage& message, std::vector<uint8_t>* bytes);
void Encode(const Response& response, std::vector<uint8_t>* bytes);

// Takes the first whole frame off `*bytes`, from `*offset` on. False if there
// is none yet. Internal if the frame makes no sense.
Status Decode(const std::vector<uint8_t>& bytes, size_t* offset,
              RankMessage* message, bool* found);
Status Decode(const std::vector<uint8_t>& bytes, size_t* offset,
              Response* response, bool* found);

}  // namespace hvd
