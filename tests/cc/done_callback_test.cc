// TensorFlow's `done` against std::function of the C++ library that it is of.
#include "tf_ops/kernels/done_callback.h"

#include <array>
#include <functional>
#include <memory>
#include <utility>

#include "tests/cc/check.h"

namespace hvd {
namespace {

#if defined(__GLIBCXX__)
TF_AsyncOpKernelDoneCallback* AddressOf(std::function<void()>* function) {
  return reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(function);
}

TEST_CASE("done is called although the function that was passed is gone") {
  int num_calls = 0;
  auto function =
      std::make_unique<std::function<void()>>([&num_calls] { ++num_calls; });
  DoneCallback done(AddressOf(function.get()));
  function.reset();
  CHECK(num_calls == 0);
  done();
  CHECK(num_calls == 1);
}

TEST_CASE("done keeps what a large function owns until it is called") {
  const auto owned = std::make_shared<int>(0);
  auto function = std::make_unique<std::function<void()>>(
      [owned, more = std::array<char, 100>()] { *owned += 1 + more[0]; });
  DoneCallback done(AddressOf(function.get()));
  function.reset();
  CHECK(owned.use_count() == 2);
  done();
  CHECK(*owned == 1);
  CHECK(owned.use_count() == 1);
}

TEST_CASE("a done that is never called frees what it owns") {
  const auto owned = std::make_shared<int>(0);
  {
    std::function<void()> function = [owned] { ++*owned; };
    const DoneCallback done(AddressOf(&function));
    CHECK(owned.use_count() == 3);
  }
  CHECK(owned.use_count() == 1);
  CHECK(*owned == 0);
}
#else
TEST_CASE("TensorFlow's done is that of another C++ library") {}
#endif

}  // namespace
}  // namespace hvd
