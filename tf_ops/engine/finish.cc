#include "tf_ops/engine/finish.h"

#include <string>
#include <utility>

namespace hvd {

namespace {

void End(const PendingRequest& pending, Request* request, const Status& status,
         Clock::time_point time, EventLog* log,
         std::vector<Completion>* completions) {
  Event event;
  event.time = time;
  event.step = Event::Step::kEnded;
  event.request = request;
  event.status = &status;
  event.collective_id = pending.collective_id;
  event.has_begun = pending.has_begun && request == &pending.request;
  log->Tell(event);
  completions->push_back(Completion{std::move(request->done), status});
}

std::string WordsOn(const Request& request) {
  std::string what = CollectiveKindName(request.kind);
  if (request.kind != CollectiveKind::kJoin) what += " '" + request.name + "'";
  if (request.process_set_id != 0) {
    what += " (process set " + std::to_string(request.process_set_id) + ")";
  }
  return what;
}

}  // namespace

void Finish(std::unique_ptr<PendingRequest> pending, const Status& status,
            Clock::time_point time, int global_rank, EventLog* log,
            std::vector<Completion>* completions) {
  if (pending == nullptr) return;  // this rank had not submitted it
  Request* const request = &pending->request;
  if (status.ok() && pending->duplicates.empty()) {
    End(*pending, request, status, time, log, completions);
    return;
  }
  const std::string what = WordsOn(*request);
  for (Request& duplicate : pending->duplicates) {
    const Status early = Status::InvalidArgument(
        "rank " + std::to_string(global_rank) +
        " submitted it again before its first call had finished");
    End(*pending, &duplicate, (status.ok() ? early : status).WithContext(what),
        time, log, completions);
  }
  End(*pending, request, status.WithContext(what), time, log, completions);
}

}  // namespace hvd
