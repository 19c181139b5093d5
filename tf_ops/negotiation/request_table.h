// The requests of this rank: those in flight, by name, and those that all
// ranks know, by cache id.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tf_ops/common/futex.h"
#include "tf_ops/negotiation/message.h"
#include "tf_ops/negotiation/request.h"

namespace hvd {

struct PendingRequest {
  Request request;
  Clock::time_point admitted;
  uint64_t collective_id = 0;                   // see Event; 0: not negotiated
  bool has_begun = false;                       // its collective has begun
  std::shared_ptr<const RequestParams> params;  // null: a join
  // Calls under the same name that came too early; they fail when this one
  // ends.
  std::vector<Request> duplicates;
};

struct NamedRequest;

// What the coordinator has said about a known request.
struct KnownRequest {
  std::string name;
  NamedRequest* named = nullptr;                // the one of that name
  std::shared_ptr<const RequestParams> params;  // of this rank
  std::vector<std::vector<int64_t>> rows;       // see ResponseItem
  HostRows host_rows;                           // likewise
};

// Everything known under a name, as long as there is anything.
struct NamedRequest {
  std::unique_ptr<PendingRequest> pending;  // null: none
  uint32_t id = 0;                          // the newest; 0: none
  const KnownRequest* known = nullptr;      // of that id
  int num_ids = 0;                          // known and not yet forgotten
};

// Not thread-safe: the worker alone uses it.
class RequestTable {
 public:
  // How a request was taken in.
  struct Admission {
    const Request* request;  // where it is now
    enum { kKnown, kNew, kDuplicate } as;
  };
  // Takes the request in and appends what to tell the coordinator. Messages
  // keep the order of the requests; ids in a row of one step share a message.
  Admission Admit(Request request, Clock::time_point now,
                  std::vector<RankMessage>* messages);

  // Takes a join in. There must be none.
  void AdmitJoin(Request request);
  bool has_join() const { return join_ != nullptr; }
  const PendingRequest& join() const { return *join_; }  // has_join()
  std::unique_ptr<PendingRequest> TakeJoin();            // may be null

  // Takes a request out; null if there is none of this name.
  std::unique_ptr<PendingRequest> Take(const std::string& name);
  std::unique_ptr<PendingRequest> Take(const KnownRequest& known);
  std::vector<std::unique_ptr<PendingRequest>> TakeAll();
  const PendingRequest* Peek(const std::string& name) const;  // or null

  bool empty() const { return size() == 0; }
  size_t size() const { return num_pending_ + (join_ == nullptr ? 0 : 1); }
  // The request that has waited longest; null if there is none. Ignores the
  // join, which may wait for as long as the others have data.
  const PendingRequest* Oldest() const;

  void Remember(uint32_t id, const ResponseItem& item,
                std::shared_ptr<const RequestParams> params);
  void Forget(uint32_t id);
  const KnownRequest* Find(uint32_t id) const;  // null: unknown

 private:
  using Names = std::unordered_map<std::string, NamedRequest>;
  std::unique_ptr<PendingRequest> TakePending(NamedRequest* named);
  void DropIfEmpty(Names::iterator named);

  Names names_;
  std::unordered_map<uint32_t, KnownRequest> known_;  // by id
  std::unique_ptr<PendingRequest> join_;              // has no name
  size_t num_pending_ = 0;                            // without the join
};

}  // namespace hvd
