#include "tf_ops/engine/finish.h"

#include <string>
#include <utility>

namespace hvd {

void Finish(std::unique_ptr<PendingRequest> pending, const Status& status,
            int global_rank, std::vector<Completion>* completions) {
  if (pending == nullptr) return;  // this rank had not come
  if (status.ok() && pending->duplicates.empty()) {
    completions->push_back(
        Completion{std::move(pending->request.done), status});
    return;
  }
  const Request& request = pending->request;
  std::string what = CollectiveKindName(request.kind);
  if (request.kind != CollectiveKind::kJoin) what += " '" + request.name + "'";
  if (request.process_set_id != 0) {
    what += " (process set " + std::to_string(request.process_set_id) + ")";
  }
  for (Request& duplicate : pending->duplicates) {
    const Status early = Status::InvalidArgument(
        "rank " + std::to_string(global_rank) +
        " submitted it before its last call had finished");
    completions->push_back(
        Completion{std::move(duplicate.done),
                   (status.ok() ? early : status).WithContext(what)});
  }
  completions->push_back(
      Completion{std::move(pending->request.done), status.WithContext(what)});
}

}  // namespace hvd
