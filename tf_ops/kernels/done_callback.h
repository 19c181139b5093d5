// TensorFlow's `done` of an asynchronous kernel, which outlives the kernel's
// function.
#pragma once

#include <utility>

struct TF_AsyncOpKernelDoneCallback;

namespace hvd {

// TensorFlow passes the address of a std::function<void()> that is gone when
// the kernel's function returns; so this copies what it points at. That is a
// std::function of GNU's C++ library, which all of TensorFlow's wheels use.
// Ours may be another library: our wheels have Clang's. So the layout stands
// here, from GCC's bits/std_function.h; it belongs to that library's stable
// ABI.
//
// Not thread-safe.
class DoneCallback {
 public:
  // `done` need only be valid during this call.
  explicit DoneCallback(TF_AsyncOpKernelDoneCallback* done) {
    const auto& theirs = *reinterpret_cast<GnuFunction*>(done);
    theirs.manage(&mine_.held, &theirs.held, kClone);
    mine_.manage = theirs.manage;
    mine_.invoke = theirs.invoke;
  }
  ~DoneCallback() { Drop(); }
  DoneCallback(const DoneCallback&) = delete;
  DoneCallback& operator=(const DoneCallback&) = delete;

  // Calls it, once, and drops the copy.
  void operator()() {
    mine_.invoke(&mine_.held);
    Drop();
  }

 private:
  enum Operation : int { kClone = 2, kDestroy = 3 };
  // The function, or a pointer to it.
  struct [[gnu::may_alias]] alignas(void*) Held {
    unsigned char bytes[2 * sizeof(void*)];
  };
  struct [[gnu::may_alias]] GnuFunction {
    Held held;
    bool (*manage)(Held* to, const Held* from, Operation operation);
    void (*invoke)(const Held* held);
  };

  void Drop() {
    if (const auto manage = std::exchange(mine_.manage, nullptr)) {
      manage(&mine_.held, &mine_.held, kDestroy);
    }
  }

  GnuFunction mine_ = {};
};

}  // namespace hvd
