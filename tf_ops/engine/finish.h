// How a request ends.
#pragma once

#include <memory>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/engine/completion_queue.h"
#include "tf_ops/engine/event_log.h"
#include "tf_ops/negotiation/request_table.h"

namespace hvd {

// Ends a request with `status`, and its duplicates, submitted too early under
// the same name, with an error: tells `log` and appends their callbacks.
// `global_rank` is this rank, for messages. `time`: of the end, for observers;
// 0: now. Does nothing if `pending` is null.
void Finish(std::unique_ptr<PendingRequest> pending, const Status& status,
            Clock::time_point time, int global_rank, EventLog* log,
            std::vector<Completion>* completions);

}  // namespace hvd
