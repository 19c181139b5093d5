#include "tf_ops/host/launch_order.h"

#include <thread>

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kLastPatience{1000};

// Waits until is_over(), often at first.
template <typename F>
Status Await(F is_over, const LaunchOrder::Look& look) {
  for (int i = 0; !is_over(); ++i) {
    if (i < 100) {
      std::this_thread::yield();
      continue;
    }
    HVD_RETURN_IF_ERROR(look());
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return Status::Ok();
}

}  // namespace

LaunchOrder::LaunchOrder(const Members* members)
    : members_(*members),
      set_(members->region()),
      job_(members->job_region()),
      own_(&set_.area(members->rank())->turns),
      own_job_(&job_.area(members->job_member(members->rank()))->turns) {}

LaunchOrder::~LaunchOrder() {
  const Clock::time_point end = Clock::now() + kLastPatience;
  const Look look = [end] {
    return Clock::now() < end ? Status::Ok() : Status::Stalled("");
  };
  while (IsDrawn() && Begin(look).ok()) End();
}

bool LaunchOrder::IsDrawn() const {
  return set_.header()->num_launches_drawn.load() > num_ended_;
}

bool LaunchOrder::TryDraw() const {
  std::atomic<uint32_t>* const lock = &job_.header()->turns_lock;
  uint32_t is_free = 0;
  if (!lock->compare_exchange_strong(is_free, 1)) return false;
  bool has_room = true;
  if (!IsDrawn()) {
    for (int member = 0; member < set_.size(); ++member) {
      const uint64_t num_launched =
          set_.area(member)->turns.num_launched.load();
      has_room = has_room && num_ended_ < num_launched + kNumTurns;
    }
    if (has_room) {
      for (int member = 0; member < set_.size(); ++member) {
        const int job_member = members_.job_member(member);
        const uint64_t turn =
            job_.area(job_member)->turns.num_given.fetch_add(1) + 1;
        set_.area(member)->turns.by_launch[num_ended_ % kNumTurns].store(turn);
      }
      set_.header()->num_launches_drawn.store(num_ended_ + 1);
    }
  }
  lock->store(0);
  return has_room;
}

Status LaunchOrder::Begin(const Look& look) {
  HVD_RETURN_IF_ERROR(Await([this] { return IsDrawn() || TryDraw(); }, look));
  const uint64_t turn = own_->by_launch[num_ended_ % kNumTurns].load();
  return Await([this, turn] { return own_job_->num_ended.load() + 1 == turn; },
               look);
}

void LaunchOrder::End() {
  own_->num_launched.store(++num_ended_);
  own_job_->num_ended.fetch_add(1);
}

}  // namespace hvd
