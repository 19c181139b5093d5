#include "tf_ops/host/other_hosts.h"

namespace hvd {
namespace {

Status CheckWords(const Words& words) {
  const std::string why = words.Get();
  return why.empty() ? Status::Ok() : Status::PeerLost(why);
}

}  // namespace

void OtherHosts::NoteLeft(const std::string& reason) {
  Note(reason, &region_.header()->others_left);
}

void OtherHosts::NoteLost(const std::string& reason) {
  Note(reason, &region_.header()->others_lost);
}

Status OtherHosts::CheckLeft() const {
  return CheckWords(region_.header()->others_left);
}

Status OtherHosts::CheckLost() const {
  return CheckWords(region_.header()->others_lost);
}

void OtherHosts::Note(const std::string& reason, Words* words) {
  words->Set(reason);
  region_.header()->num_gone.fetch_add(1);
  doorbell_->RingAll();
}

}  // namespace hvd
