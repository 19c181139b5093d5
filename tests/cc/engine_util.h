// An engine for each rank, and calls of any kind with values that are easy to
// write down.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/hosts.h"
#include "tests/cc/test_util.h"
#include "tf_ops/engine/engine.h"

namespace hvd {

using Engines = std::vector<std::unique_ptr<Engine>>;

inline EngineOptions QuickOptions() {
  EngineOptions options;
  options.stall_warning_seconds = 0.2;
  options.stall_timeout_seconds = 20.0;
  return options;
}

// The ranks of each of `num_hosts` hosts, dealt in turn.
inline std::vector<std::vector<int>> Deal(int size, int num_hosts) {
  std::vector<std::vector<int>> ranks(
      static_cast<size_t>(std::min(size, num_hosts)));
  for (int rank = 0; rank < size; ++rank) {
    ranks[static_cast<size_t>(rank) % ranks.size()].push_back(rank);
  }
  return ranks;
}

// The engines keep the hosts alive.
inline Engines MakeEnginesOnHosts(int size, int num_hosts,
                                  const EngineOptions& options,
                                  std::vector<HostGroup*>* groups) {
  const auto hosts = std::make_shared<Hosts>(Deal(size, num_hosts));
  std::vector<std::unique_ptr<ControlLinks>> links = hosts->Connect();
  Engines engines;
  for (int rank = 0; rank < size; ++rank) {
    const auto [host, member] = hosts->Find(rank);
    HostGroup* const group = hosts->group(rank);
    if (groups != nullptr) groups->push_back(group);
    engines.push_back(
        Engine::Create(std::shared_ptr<HostGroup>(hosts, group), options,
                       hosts->layout(host, member),
                       member == 0 ? std::move(links[host]) : nullptr));
  }
  return engines;
}

inline bool AreOnHosts() { return std::getenv("HVD_TEST_HOSTS") != nullptr; }

// A rank finds `victim` dead. False if that is on another host.
inline bool MarkDead(Membership* membership, int victim) {
  for (int member = 0; member < membership->members().size(); ++member) {
    if (membership->members().global_rank(member) != victim) continue;
    membership->MarkDead(member);
    return true;
  }
  return false;
}

// The other ranks of its host find `victim` dead.
inline void MarkDead(const std::vector<HostGroup*>& groups, int victim) {
  for (HostGroup* group : groups) {
    Membership* const membership = group->membership();
    if (membership->members().own_global_rank() != victim) {
      MarkDead(membership, victim);
    }
  }
}

// A rank finds `victim` dead, or hears of it from another host.
inline void FindDead(Membership* membership, int victim) {
  if (!MarkDead(membership, victim)) {
    membership->other_hosts().NoteLost("rank " + std::to_string(victim) +
                                       " died");
  }
}

// On as many hosts as HVD_TEST_HOSTS says: the tests of engines run twice.
inline Engines MakeEngines(int size, const EngineOptions& options,
                           std::vector<HostGroup*>* groups = nullptr) {
  const char* const num_hosts = std::getenv("HVD_TEST_HOSTS");
  if (num_hosts != nullptr && size > 1) {
    return MakeEnginesOnHosts(size, std::atoi(num_hosts), options, groups);
  }
  Engines engines;
  for (auto& group : CreateInMemory(size)) {
    if (groups != nullptr) groups->push_back(group.get());
    engines.push_back(Engine::Create(std::move(group), options));
  }
  return engines;
}

// Runs `body(rank, engine)` on a thread for each rank.
inline void RunRanks(const Engines& engines,
                     const std::function<void(int rank, Engine*)>& body) {
  const auto of = [&engines](int rank) {
    return engines[static_cast<size_t>(rank)].get();
  };
  RunOnThreads(
      static_cast<int>(engines.size()), [&](int rank) { body(rank, of(rank)); },
      [&](int failed) { of(failed)->Shutdown("its test has failed"); });
}

// A tensor.
struct Values {
  DataType dtype = DataType::kFloat32;
  Shape shape;
  std::vector<double> numbers;

  bool operator==(const Values& o) const {
    return dtype == o.dtype && shape == o.shape && numbers == o.numbers;
  }
};

inline doctest::String toString(const Values& values) {
  return DataTypeName(values.dtype) + doctest::String(" ") +
         doctest::toString(values.shape) + " of " +
         doctest::toString(values.numbers);
}

inline Values Fill(DataType dtype, Shape shape, double number) {
  const size_t count = static_cast<size_t>(NumElements(shape));
  return Values{dtype, std::move(shape), std::vector<double>(count, number)};
}

// Calls f(T()) for the C++ type of `dtype`.
template <typename F>
void WithType(DataType dtype, F f) {
  switch (dtype) {
    case DataType::kFloat32:
      return f(float());
    case DataType::kFloat64:
      return f(double());
    case DataType::kInt32:
      return f(int32_t());
    case DataType::kInt64:
      return f(int64_t());
    case DataType::kBool:
    case DataType::kUint8:
      return f(uint8_t());
    default:
      CHECK(false);
  }
}

inline std::vector<std::byte> Pack(const Values& values) {
  std::vector<std::byte> bytes(values.numbers.size() *
                               ElementBytes(values.dtype));
  WithType(values.dtype, [&](auto zero) {
    for (size_t i = 0; i < values.numbers.size(); ++i) {
      const auto one = static_cast<decltype(zero)>(values.numbers[i]);
      std::memcpy(bytes.data() + i * sizeof(one), &one, sizeof(one));
    }
  });
  return bytes;
}

inline Values Unpack(DataType dtype, const Shape& shape,
                     const std::vector<std::byte>& bytes) {
  Values values = Fill(dtype, shape, 0);
  WithType(dtype, [&](auto one) {
    for (size_t i = 0; i < values.numbers.size(); ++i) {
      std::memcpy(&one, bytes.data() + i * sizeof(one), sizeof(one));
      values.numbers[i] = static_cast<double>(one);
    }
  });
  return values;
}

struct Outcome {
  Status status;
  std::vector<Values> outputs;    // if ok
  std::vector<int64_t> received;  // what take_values got
};

// Submits `request` with copies of `inputs`.
inline std::future<Outcome> Submit(Engine* engine, Request request,
                                   const std::vector<Values>& inputs) {
  struct State {
    std::vector<std::vector<std::byte>> inputs, outputs;
    std::vector<Values> shapes;  // of the outputs, without numbers
    std::vector<int64_t> received;
    std::promise<Outcome> promise;
  };
  auto state = std::make_shared<State>();
  const bool allocates = request.kind == CollectiveKind::kAllgather ||
                         request.kind == CollectiveKind::kAlltoall ||
                         request.kind == CollectiveKind::kReducescatter;
  for (const Values& values : inputs) {
    state->inputs.push_back(Pack(values));
    state->outputs.emplace_back(allocates ? 0 : state->inputs.back().size());
    state->shapes.push_back(Values{values.dtype, values.shape, {}});
    RequestTensor tensor;
    tensor.dtype = values.dtype;
    tensor.shape = values.shape;
    tensor.input = state->inputs.back().data();
    tensor.output = allocates ? nullptr : state->outputs.back().data();
    request.tensors.push_back(std::move(tensor));
  }
  if (allocates && request.allocate_output == nullptr) {
    request.allocate_output = [state](size_t i, const Shape& shape,
                                      void** output) {
      CHECK(state->outputs[i].empty());  // once
      state->shapes[i].shape = shape;
      state->outputs[i].resize(static_cast<size_t>(NumElements(shape)) *
                               ElementBytes(state->shapes[i].dtype));
      *output = state->outputs[i].data();
      return Status::Ok();
    };
  }
  request.take_values = [state](const std::vector<int64_t>& received) {
    state->received = received;
    return Status::Ok();
  };
  request.done = [state](const Status& status) {
    Outcome outcome;
    outcome.status = status;
    outcome.received = state->received;
    for (size_t i = 0; status.ok() && i < state->outputs.size(); ++i) {
      outcome.outputs.push_back(Unpack(
          state->shapes[i].dtype, state->shapes[i].shape, state->outputs[i]));
    }
    state->promise.set_value(std::move(outcome));
  };
  std::future<Outcome> future = state->promise.get_future();
  engine->Submit(std::move(request));
  return future;
}

inline Request ARequest(CollectiveKind kind, const std::string& name,
                        ReduceOp op = ReduceOp::kSum) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.op = op;
  return request;
}

// Submits and waits; it must succeed.
inline Outcome Run(Engine* engine, Request request,
                   const std::vector<Values>& inputs) {
  Outcome outcome = Submit(engine, std::move(request), inputs).get();
  REQUIRE_OK(outcome.status);
  return outcome;
}

}  // namespace hvd
