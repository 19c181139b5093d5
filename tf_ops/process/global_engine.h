// The engines of this process, for kernels and for Python. Any thread may call
// these functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/engine/engine.h"
#include "tf_ops/negotiation/message.h"
#include "tf_ops/negotiation/request.h"

namespace hvd {

// Makes `engine` that of process set 0, all ranks; it must have none yet.
void SetGlobalEngine(std::shared_ptr<Engine> engine);
std::shared_ptr<Engine> GlobalEngine();  // null: none
// The engine of process set `id`; null: no such set, or not on this rank.
std::shared_ptr<Engine> EngineOf(int32_t id);

// Registers process set `id` of the global ranks `ranks`, which are ascending;
// `engine` is null if this rank is not one of them. After an error nothing is
// registered.
Status AddProcessSet(int32_t id, std::vector<int> ranks,
                     std::shared_ptr<Engine> engine);
// Ends its engine, if there is one, and forgets it.
Status RemoveProcessSet(int32_t id);
// The ids of all process sets, with 0; empty without a global engine.
std::vector<int32_t> ProcessSetIds();
// The global ranks of a process set. NotInitialized without a global engine,
// InvalidArgument if there is no such set.
Status ProcessSetRanks(int32_t id, std::vector<int>* ranks);
// The sum over all process sets since SetGlobalEngine.
EngineStats TotalStats();
// EngineOptions::pending_elsewhere for the engine of `own_id`. Two engines that
// ask each other do not wait for one another.
int PendingElsewhere(int32_t own_id, const std::string& name,
                     const std::vector<int>& waiting);

// Ends all engines, those of the process sets first; forgets all of them.
void ShutdownGlobal(const std::string& reason);

// Sets the step of training that later requests belong to.
void SetTrainingStep(TrainingStep step);

// Hands the request to the engine of its process set; if there is none, calls
// its `done` with kNotInitialized or kInvalidArgument.
void SubmitGlobal(Request request);

}  // namespace hvd
