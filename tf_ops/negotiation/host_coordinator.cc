#include "tf_ops/negotiation/host_coordinator.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

// More names are forgotten: that costs the order of some messages.
constexpr size_t kMostLate = 1024;

}  // namespace

HostCoordinator::HostCoordinator(std::vector<int> ranks)
    : ranks_(std::move(ranks)), joined_(ranks_.size()) {}

Status HostCoordinator::OnMessage(int local_rank, const RankMessage& message,
                                  Clock::time_point now) {
  if (!message.ranks.empty()) {
    return Status::Internal(NameOf(local_rank) + " speaks for others");
  }
  switch (message.type) {
    case RankMessage::Type::kRequest:
      Arrive(FindOrAdd(message.name), local_rank,
             Arrival{Arrival::State::kHeld, /*id=*/0,
                     std::make_shared<const RequestParams>(message.params),
                     message.step},
             now);
      return Status::Ok();
    case RankMessage::Type::kReady:
    case RankMessage::Type::kForgotten:
      return OnIds(local_rank, message, now);
    case RankMessage::Type::kJoin:
      // After the calls that it has come for: they count.
      Pass(local_rank, message);
      OnJoin(local_rank);
      return Status::Ok();
    case RankMessage::Type::kDuplicate:
    case RankMessage::Type::kElsewhere:
      Pass(local_rank, message);
      return Status::Ok();
  }
  return Status::Internal("unknown control message");
}

std::string HostCoordinator::NameOf(int local_rank) const {
  return "rank " + std::to_string(ranks_[static_cast<size_t>(local_rank)]) +
         " of the process set";
}

Status HostCoordinator::OnIds(int local_rank, const RankMessage& message,
                              Clock::time_point now) {
  if (NumIds(message.ids) > ids_.size()) {
    return Status::Internal(NameOf(local_rank) + " speaks of " +
                            std::to_string(NumIds(message.ids)) +
                            " ids, but only " + std::to_string(ids_.size()) +
                            " are known");
  }
  for (const IdRun& run : message.ids) {
    for (uint32_t i = 0; i < run.count; ++i) {
      const uint32_t id = run.first + i;
      const auto known = ids_.find(id);
      if (known == ids_.end()) {
        return Status::Internal(NameOf(local_rank) + " speaks of unknown id " +
                                std::to_string(id));
      }
      if (message.type == RankMessage::Type::kForgotten) {
        OnForgotten(id);
      } else {
        Arrive(known->second.call, local_rank,
               Arrival{Arrival::State::kHeld, id, nullptr, message.step}, now);
      }
    }
  }
  return Status::Ok();
}

// Once all have: nobody sends the id any more.
void HostCoordinator::OnForgotten(uint32_t id) {
  const auto known = ids_.find(id);
  if (++known->second.num_forgotten < ranks_.size()) return;
  Call* const call = known->second.call;
  Tell(call);  // perhaps by that id
  AppendId(id, &Append(RankMessage::Type::kForgotten, {})->ids);
  ids_.erase(known);
  --call->num_ids;
  DropIfUnused(call);
}

void HostCoordinator::OnJoin(int local_rank) {
  const size_t index = static_cast<size_t>(local_rank);
  if (joined_[index]) return;
  joined_[index] = true;
  ++num_joined_;
  // All is told. What waited for this rank alone is over.
  std::vector<Call*> complete;
  for (const auto& [name, call] : calls_) {
    if (call->num_come > 0 && IsComplete(*call)) complete.push_back(call.get());
  }
  for (Call* call : complete) {
    for (Arrival& arrival : call->by_rank) Forget(&arrival, call);
    DropIfUnused(call);
  }
}

void HostCoordinator::Arrive(Call* call, int local_rank, Arrival arrival,
                             Clock::time_point now) {
  const size_t index = static_cast<size_t>(local_rank);
  Arrival& before = call->by_rank[index];
  if (before.state == Arrival::State::kAbsent) ++call->num_come;
  if (before.state != Arrival::State::kHeld && call->num_held++ == 0) {
    call->first_held = now;
    call->number_held = ++num_ever_held_;
    const Clock::time_point tell = now + kTellPartAfter;
    next_tell_ = num_held_++ == 0 ? tell : std::min(next_tell_, tell);
  }
  before = std::move(arrival);
  call->last_rank = ranks_[index];
  if (!IsComplete(*call)) {
    if (!late_.empty() && late_.count(call->name) > 0) TellAllHeld();
    return;
  }
  Tell(call);
  for (Arrival& told : call->by_rank) Forget(&told, call);
  DropIfUnused(call);
}

bool HostCoordinator::IsComplete(const Call& call) const {
  if (call.num_come == ranks_.size()) return true;
  if (call.num_come + num_joined_ < ranks_.size()) return false;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (call.by_rank[i].state == Arrival::State::kAbsent && !joined_[i]) {
      return false;
    }
  }
  return true;
}

void HostCoordinator::Tell(Call* call) {
  if (call->num_held == 0) return;
  if (HasCommonId(*call)) {
    TellReady(call->by_rank[0], {}, call->last_rank);
  } else {
    for (const Party& party : PartiesOf(*call)) TellParty(*call, party);
  }
  for (Arrival& arrival : call->by_rank) {
    if (arrival.state != Arrival::State::kHeld) continue;
    arrival.state = Arrival::State::kTold;
  }
  call->num_held = 0;
  --num_held_;
}

bool HostCoordinator::AreAlike(const Arrival& a, const Arrival& b) {
  return a.id == b.id && (a.id != 0 || *a.params == *b.params) &&
         a.step == b.step;
}

bool HostCoordinator::HasCommonId(const Call& call) const {
  const Arrival& first = call.by_rank[0];
  return call.num_held == ranks_.size() && first.id != 0 &&
         std::all_of(
             call.by_rank.begin(), call.by_rank.end(),
             [&](const Arrival& arrival) { return AreAlike(first, arrival); });
}

// Of what is held. That of the last rank is the last.
std::vector<HostCoordinator::Party> HostCoordinator::PartiesOf(
    const Call& call) const {
  std::vector<Party> parties;
  size_t last = 0;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Arrival& arrival = call.by_rank[i];
    if (arrival.state != Arrival::State::kHeld) continue;
    auto party = std::find_if(
        parties.begin(), parties.end(),
        [&](const Party& p) { return AreAlike(*p.like, arrival); });
    if (party == parties.end()) {
      party = parties.insert(party, Party{&arrival, {}});
    }
    party->ranks.push_back(ranks_[i]);
    if (ranks_[i] != call.last_rank) continue;
    last = static_cast<size_t>(party - parties.begin());
  }
  std::swap(parties[last], parties.back());
  return parties;
}

void HostCoordinator::TellParty(const Call& call, const Party& party) {
  const bool has_last = std::find(party.ranks.begin(), party.ranks.end(),
                                  call.last_rank) != party.ranks.end();
  const int32_t last_rank = has_last ? call.last_rank : party.ranks.back();
  std::vector<int32_t> ranks;  // empty: all of the host
  if (party.ranks.size() < ranks_.size()) ranks = party.ranks;
  if (party.like->id != 0) {
    TellReady(*party.like, std::move(ranks), last_rank);
    return;
  }
  messages_.emplace_back();
  RankMessage& message = messages_.back();
  message.ranks = std::move(ranks);
  message.last_rank = last_rank;
  message.step = party.like->step;
  message.name = call.name;
  message.params = *party.like->params;
}

void HostCoordinator::TellReady(const Arrival& like, std::vector<int32_t> ranks,
                                int32_t last_rank) {
  RankMessage* message =
      Append(RankMessage::Type::kReady, std::move(ranks), like.step);
  AppendId(like.id, &message->ids);
  message->last_rank = last_rank;
}

RankMessage* HostCoordinator::Append(RankMessage::Type type,
                                     std::vector<int32_t> ranks,
                                     TrainingStep step) {
  if (messages_.empty() || messages_.back().type != type ||
      messages_.back().ranks != ranks || messages_.back().step != step) {
    messages_.emplace_back();
    messages_.back().type = type;
    messages_.back().step = step;
    messages_.back().ranks = std::move(ranks);
  }
  return &messages_.back();
}

void HostCoordinator::Pass(int local_rank, const RankMessage& message) {
  // It may be about a call that is held: the order is that of the rank.
  TellAllHeld();
  messages_.push_back(message);
  if (ranks_.size() == 1) return;
  messages_.back().ranks = {ranks_[static_cast<size_t>(local_rank)]};
}

void HostCoordinator::TellHeld(Clock::time_point limit) {
  if (num_held_ == 0) return;
  std::vector<Call*> due;
  next_tell_ = Clock::time_point::max();
  for (const auto& [name, call] : calls_) {
    if (call->num_held == 0) continue;
    if (call->first_held <= limit) {
      due.push_back(call.get());
    } else {
      next_tell_ = std::min(next_tell_, call->first_held + kTellPartAfter);
    }
  }
  std::sort(due.begin(), due.end(), [](const Call* a, const Call* b) {
    return a->number_held < b->number_held;
  });
  for (Call* call : due) Tell(call);
}

std::vector<RankMessage> HostCoordinator::TakeMessages(Clock::time_point now) {
  if (num_held_ > 0 && now >= next_tell_) TellHeld(now - kTellPartAfter);
  return std::exchange(messages_, {});
}

// An eviction changes nothing: ids count until all ranks forget them.
void HostCoordinator::OnResponse(const Response& response) {
  if (const auto* execution = std::get_if<Execution>(&response)) {
    for (const ResponseItem& item : execution->items) OnItem(item);
  } else if (const auto* failure = std::get_if<Failure>(&response)) {
    OnFailure(*failure);
  } else if (const auto* end = std::get_if<JoinEnd>(&response)) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (!joined_[i] || !Concerns(end->ranks, ranks_[i])) continue;
      joined_[i] = false;
      --num_joined_;
    }
  }
}

void HostCoordinator::OnItem(const ResponseItem& item) {
  Call* call = FindFor(item);
  if (call == nullptr && item.new_id != 0) call = FindOrAdd(item.name);
  if (!late_.empty()) late_.erase(call == nullptr ? item.name : call->name);
  if (call == nullptr) return;
  if (item.new_id != 0) {
    ++call->num_ids;
    ids_[item.new_id] = KnownId{call};
  }
  ForgetTold(/*ranks=*/{}, call);
}

void HostCoordinator::ForgetTold(const std::vector<int32_t>& ranks,
                                 Call* call) {
  for (size_t i = 0; call->num_come > 0 && i < ranks_.size(); ++i) {
    Arrival* arrival = &call->by_rank[i];
    const bool is_told = arrival->state == Arrival::State::kTold;
    if (is_told && Concerns(ranks, ranks_[i])) Forget(arrival, call);
  }
  DropIfUnused(call);
}

void HostCoordinator::OnFailure(const Failure& failure) {
  Call* call = Find(failure.name);
  if (call != nullptr) ForgetTold(failure.ranks, call);
  const auto knows = [&](int rank) { return Concerns(failure.ranks, rank); };
  if (std::all_of(ranks_.begin(), ranks_.end(), knows)) return;
  // Another rank may yet come for it.
  if (late_.size() == kMostLate) late_.clear();
  late_.insert(failure.name);
  call = Find(failure.name);
  if (call != nullptr && call->num_held > 0) TellAllHeld();
}

HostCoordinator::Call* HostCoordinator::Find(const std::string& name) {
  const auto found = calls_.find(name);
  return found == calls_.end() ? nullptr : found->second.get();
}

HostCoordinator::Call* HostCoordinator::FindFor(const ResponseItem& item) {
  if (item.cached_id == 0) return Find(item.name);
  const auto known = ids_.find(item.cached_id);
  return known == ids_.end() ? nullptr : known->second.call;
}

HostCoordinator::Call* HostCoordinator::FindOrAdd(const std::string& name) {
  std::unique_ptr<Call>& call = calls_[name];
  if (call == nullptr) {
    call = std::make_unique<Call>();
    call->name = name;
    call->by_rank.resize(ranks_.size());
  }
  return call.get();
}

void HostCoordinator::Forget(Arrival* arrival, Call* call) {
  if (arrival->state == Arrival::State::kAbsent) return;
  *arrival = Arrival();
  --call->num_come;
}

void HostCoordinator::DropIfUnused(Call* call) {
  if (call->num_ids == 0 && call->num_come == 0) {
    calls_.erase(std::string(call->name));
  }
}

}  // namespace hvd
