// The handlers of XLA's FFI for GPUs, called as XLA:GPU would call them, on
// fake GPUs. A rank is a process.
#include "tf_ops/process/global_engine.h"
#include "tf_ops/xla/handlers.h"

#include <sys/syscall.h>

#include <chrono>
#include <sstream>

#include "tests/cc/ffi_util.h"
#include "tests/cc/gpu_util.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSlow{600};

// A rank: the thread that runs XLA's programs, and its stream.
class Program {
 public:
  explicit Program(int rank) : gpu_(rank), rank_(rank) {
    token_ = {gpu_.Allocate(4), {}, XLA_FFI_DataType_S32};
  }

  void* stream() const { return gpu_.stream(); }
  int rank() const { return rank_; }

  // Memory that the stream fills, after `delay`.
  FfiBuffer Make(Shape shape, double number,
                 std::chrono::microseconds delay = {}) {
    values_.push_back(Pack(Fill(DataType::kFloat32, shape, number)));
    const std::vector<std::byte>& values = values_.back();
    const FfiBuffer buffer{gpu_.Allocate(values.size()), std::move(shape)};
    if (values.empty()) return buffer;
    UseFakes().copy_later(buffer.data, values.data(), values.size(),
                          delay.count(), stream());
    return buffer;
  }

  // Starts the allreduce of a bucket; without `has_together` it ends here too.
  FfiOutcome Allreduce(const std::string& name,
                       const std::vector<FfiBuffer>& members,
                       bool has_together) {
    FfiCall call = Named(name);
    for (const FfiBuffer& member : members) call.InPlace(member);
    call.InPlace(token_)
        .Set("has_token", 1)
        .Set("has_together", has_together ? 1 : 0);
    return SetReduction(&call).Run(HvdFfiGpuAllreduce, stream());
  }

  FfiOutcome Together(const std::vector<FfiBuffer>& members) {
    FfiCall call;
    for (const FfiBuffer& member : members) call.InPlace(member);
    return call.InPlace(token_)
        .Set("has_token", 1)
        .Run(HvdFfiGpuTogether, stream());
  }

  static FfiCall Named(const std::string& name) {
    FfiCall call;
    call.Set("name", name).Set("process_set_id", 0);
    return call;
  }
  static FfiCall& SetReduction(FfiCall* call) {
    return call->Set("reduce_op", static_cast<int32_t>(ReduceOp::kSum))
        .Set("prescale", 1.0)
        .Set("postscale", 1.0);
  }

  // Checks all numbers once the stream has ended.
  void Check(const FfiBuffer& buffer, double number) {
    UseFakes().stream_synchronize(stream());
    const auto* const begin = static_cast<const float*>(buffer.data);
    const std::vector<float> numbers(begin, begin + NumElements(buffer.shape));
    CHECK(Differences(numbers, [number](size_t) {
            return static_cast<float>(number);
          }) == "");
  }

 private:
  std::deque<std::vector<std::byte>> values_;  // until the stream has ended
  UserGpu gpu_;
  const int rank_;
  FfiBuffer token_;
};

void CheckOk(const FfiOutcome& outcome) {
  CAPTURE(outcome.message);
  REQUIRE(outcome.ok());
}

void CheckError(const FfiOutcome& outcome, XLA_FFI_Error_Code code,
                const std::string& type, const std::string& part) {
  CAPTURE(outcome.message);
  CHECK(outcome.code == code);
  CHECK(outcome.message.rfind("hvd_keras.exceptions." + type + "Error: ", 0) ==
        0);
  CHECK(Contains(outcome.message, part));
}

template <typename Body>
std::vector<int> RunPrograms(int size, Body body) {
  return RunProcesses(size, [&body](std::unique_ptr<HostGroup> group) {
    UseFakes();
    const int rank = group->rank();
    SetGlobalEngine(Engine::Create(std::move(group), GpuOptionsOfTests()));
    {
      Program program(rank);
      body(&program);
      const std::shared_ptr<Engine> engine = GlobalEngine();
      if (engine != nullptr) {
        // Nobody leaves while another one launches.
        Submit(engine.get(), ARequest(CollectiveKind::kBarrier, "end"), {})
            .wait();
      }
    }
    CHECK(UseFakes().num_misuses() == 0);
    ShutdownGlobal("done");
  });
}

// One step: two buckets and their end.
void RunStep(Program* program, const std::string& prefix, int size, int round) {
  const int total = size * (size - 1) / 2;
  const int rank = program->rank();
  const FfiBuffer a = program->Make({300}, rank + round);
  const FfiBuffer b = program->Make({2, 4}, rank);
  const FfiBuffer none = program->Make({0, 4}, 0);
  const FfiBuffer large = program->Make({9000}, rank - round);
  CheckOk(program->Allreduce(prefix + "x", {a, none, b}, true));
  CheckOk(program->Allreduce(prefix + "y", {large}, true));
  CheckOk(program->Together({large, a, b, none}));
  program->Check(a, total + round * size);
  program->Check(b, total);
  program->Check(large, total - round * size);
}

void TestSteps(int size) {
  CheckAllExitedWell(RunPrograms(size, [size](Program* program) {
    for (int round = 0; round < 20; ++round) {
      RunStep(program, "a", size, round);
    }
    // Two programs at once, on two streams.
    Program second(program->rank());
    RunOnThreads(2, [&](int which) {
      for (int round = 0; round < 20; ++round) {
        RunStep(which == 0 ? program : &second, which == 0 ? "a" : "b", size,
                round);
      }
    });
  }));
}

void TestCallsThatEndAlone(int size) {
  CheckAllExitedWell(RunPrograms(size, [size](Program* program) {
    const int rank = program->rank();
    const int total = size * (size - 1) / 2;
    for (int round = 0; round < 3; ++round) {
      const FfiBuffer sum = program->Make({7}, rank);
      CheckOk(program->Allreduce("sum", {sum}, false));
      const FfiBuffer sent = program->Make({5}, rank);
      CheckOk(Program::Named("sent")
                  .InPlace(sent)
                  .Set("root_rank", size - 1)
                  .Run(HvdFfiGpuBroadcast, program->stream()));
      const FfiBuffer rows = program->Make({size, 3}, rank + 1);
      const FfiBuffer all = program->Make({size * size, 3}, 0);
      CheckOk(Program::Named("all").Operand(rows).Result(all).Run(
          HvdFfiGpuAllgather, program->stream()));
      const FfiBuffer dealt = program->Make({size, 3}, 0);
      CheckOk(Program::Named("dealt").Operand(rows).Result(dealt).Run(
          HvdFfiGpuAlltoall, program->stream()));
      const FfiBuffer part = program->Make({1, 3}, 0);
      FfiCall call = Program::Named("part");
      Program::SetReduction(&call.Operand(rows).Result(part));
      CheckOk(call.Run(HvdFfiGpuReducescatter, program->stream()));
      program->Check(sum, total);
      program->Check(sent, size - 1);
      program->Check(part, total + size);
      for (int r = 0; r < size; ++r) {
        auto* const first = static_cast<float*>(all.data) + 3 * size * r;
        program->Check({first, {size, 3}}, r + 1);
        program->Check({static_cast<float*>(dealt.data) + 3 * r, {3}}, r + 1);
      }
    }
  }));
}

// What XLA's thread has called since fakeLogStart.
std::vector<std::string> CallsOfThisThread() {
  std::string text(UseFakes().log_stop(nullptr, 0) + 1, '\0');
  UseFakes().log_stop(text.data(), text.size());
  std::istringstream lines(text.c_str());
  std::vector<std::string> calls;
  int64_t thread = 0;
  std::string function;
  while (lines >> thread >> function) {
    if (thread == syscall(SYS_gettid)) calls.push_back(function);
  }
  return calls;
}

// If gradients are late, XLA's thread goes on, and so does its stream up to the
// end of the group.
TEST_CASE("XLA's thread waits for the launch alone") {
  CheckAllExitedWell(RunPrograms(2, [](Program* program) {
    RunStep(program, "a", 2, 0);  // connects
    const FfiBuffer x = program->Make({50}, 1);
    const FfiBuffer y = program->Make({5000}, 2);
    // Rank 1's is late, so that the collective cannot end before.
    const FfiBuffer late =
        program->Make({50}, 3, program->rank() == 1 ? kSlow : milliseconds(0));
    UseFakes().log_start();
    const auto begin = Clock::now();
    CheckOk(program->Allreduce("x", {x}, true));
    CheckOk(program->Allreduce("y", {y, late}, true));
    std::vector<std::string> calls = CallsOfThisThread();
    const auto made =
        std::remove(calls.begin(), calls.end(), "cudaEventCreateWithFlags");
    CHECK(std::vector<std::string>(calls.begin(), made) ==
          (std::vector<std::string>{"cudaEventRecord", "cudaEventRecord"}));
    if (program->rank() == 0) {
      // The stream waits in the end, not since the launch.
      std::this_thread::sleep_for(milliseconds(50));
      program->Check(program->Make({50}, 4), 4);
      CHECK(Clock::now() - begin < kSlow * 3 / 4);
    }
    UseFakes().log_start();
    CheckOk(program->Together({x, y, late}));
    CHECK(CallsOfThisThread() ==
          (std::vector<std::string>{"cudaStreamWaitEvent",
                                    "cudaStreamWaitEvent"}));
    CHECK(Clock::now() - begin < kSlow * 3 / 4);
    program->Check(late, 6);
    CHECK(Clock::now() - begin >= kSlow / 2);
    program->Check(x, 2);
    program->Check(y, 4);
  }));
}

// All ranks start calls in one order, but may end groups in any order.
TEST_CASE("two groups end in an order of each rank") {
  CheckAllExitedWell(RunPrograms(2, [](Program* program) {
    for (int round = 0; round < 10; ++round) {
      const FfiBuffer a = program->Make({50}, 1);
      const FfiBuffer b = program->Make({60}, 2);
      CheckOk(program->Allreduce("a", {a}, true));
      if (program->rank() == 0) CheckOk(program->Together({a}));
      CheckOk(program->Allreduce("b", {b}, true));
      CheckOk(program->Together({b}));
      if (program->rank() == 1) CheckOk(program->Together({a}));
      program->Check(a, 2);
      program->Check(b, 4);
    }
  }));
}

TEST_CASE("mistakes fail the end of the group, and the engine lives") {
  CheckAllExitedWell(RunPrograms(2, [](Program* program) {
    const auto rows = static_cast<int64_t>(program->rank() + 3);
    for (int round = 0; round < 2; ++round) {
      const FfiBuffer good = program->Make({8}, 1, kSlow / 6);
      const FfiBuffer other = program->Make({8}, 2);
      const FfiBuffer bad = program->Make({rows}, 1);
      CheckOk(program->Allreduce("bad", {bad}, true));
      CheckOk(program->Allreduce("good", {good}, true));
      CheckOk(program->Allreduce("other", {other}, true));  // not in the group
      CheckError(program->Together({bad, good}),
                 XLA_FFI_Error_Code_FAILED_PRECONDITION, "Mismatch",
                 "allreduce 'bad': ranks disagree on the shape: [3] on rank 0; "
                 "[4] on rank 1");
      // XLA's stream waits for all that was started.
      program->Check(good, 2);
      program->Check(other, 4);
      CheckError(program->Together({other}), XLA_FFI_Error_Code_INTERNAL,
                 "Internal", "operand 0 must be, and stay, in the memory");
      RunStep(program, "a", 2, round);
    }
    // A program of XLA that fails by itself leaves its calls behind.
    const FfiBuffer left = program->Make({8}, 1);
    CheckOk(program->Allreduce("left", {left}, true));
    CheckOk(program->Allreduce("next", {left}, true));
    CheckOk(program->Together({left}));
    program->Check(left, 4);

    FfiCall call = Program::Named("elsewhere");
    call.Operand(left).Result(program->Make({8}, 0)).Set("has_together", 1);
    CheckError(
        Program::SetReduction(&call).Run(HvdFfiGpuAllreduce, program->stream()),
        XLA_FFI_Error_Code_INVALID_ARGUMENT, "InvalidArgument",
        "allreduce 'elsewhere': with `has_together` results must alias");
    float host = 0;
    CheckError(program->Allreduce("host", {{&host, {1}}}, true),
               XLA_FFI_Error_Code_INTERNAL, "Internal", "allreduce 'host': ");
    ShutdownGlobal("the test ends");
    CheckOk(program->Allreduce("late", {left}, true));
    CheckError(program->Together({left}),
               XLA_FFI_Error_Code_FAILED_PRECONDITION, "NotInitialized",
               "hvd.init()");
  }));
}

// Keeps what this process writes to stderr.
class Stderr {
 public:
  Stderr() : file_(std::tmpfile()), old_(dup(STDERR_FILENO)) {
    REQUIRE(file_ != nullptr);
    CHECK(dup2(fileno(file_), STDERR_FILENO) >= 0);
  }
  std::string Take() {
    CHECK(dup2(old_, STDERR_FILENO) >= 0);
    std::string text(4096, '\0');
    std::rewind(file_);
    text.resize(std::fread(text.data(), 1, text.size(), file_));
    return text;
  }

 private:
  std::FILE* const file_;
  const int old_;
};

// Before the launch, the end of the group reports the death. After it, stderr
// does at once, and then the next call. Nothing hangs on the GPU.
void TestDeathOfARank(bool is_launched) {
  const std::vector<int> statuses =
      RunPrograms(3, [is_launched](Program* program) {
        RunStep(program, "a", 3, 0);
        const FfiBuffer x = program->Make({50}, 1);
        const FfiBuffer y = program->Make({50}, 1);
        CheckOk(program->Allreduce("x", {x}, true));
        if (program->rank() == 2 && !is_launched) EndChild();
        const bool is_late = program->rank() == 2;
        const FfiBuffer z =
            program->Make({50}, 1, is_late ? 4 * kSlow : milliseconds(0));
        CheckOk(program->Allreduce("z", {z}, true));
        const auto begin = Clock::now();
        FfiOutcome outcome = program->Together({x, z});
        if (is_launched) {
          CheckOk(outcome);
          if (program->rank() == 2) {
            std::this_thread::sleep_for(milliseconds(200));
            EndChild();
          }
          Stderr log;
          UseFakes().stream_synchronize(program->stream());
          const std::string text = log.Take();
          CHECK(Contains(text, "] allreduce '"));  // x and z, if together
          CHECK(Contains(text, "' failed on the GPU after the program"));
          CHECK(Contains(text, "rank 2"));
          CheckOk(program->Allreduce("y", {y}, true));
          outcome = program->Together({y});
        }
        CheckError(outcome, XLA_FFI_Error_Code_UNKNOWN, "PeerLost", "rank 2");
        CHECK(Clock::now() - begin < std::chrono::seconds(2));
      });
  CheckAllExitedWell(statuses);
}

TEST_CASE("buckets and their end, in two programs at once") {
  for (int size : {1, 2, 4}) TestSteps(size);
}
TEST_CASE("calls that end alone") {
  for (int size : {1, 2, 4}) TestCallsThatEndAlone(size);
}
TEST_CASE("a death before the launch fails the end of the group") {
  TestDeathOfARank(/*is_launched=*/false);
}
TEST_CASE("a death after the launch is said at once, and fails the next call") {
  TestDeathOfARank(/*is_launched=*/true);
}

}  // namespace
}  // namespace hvd
