#include "tf_ops/wire/tcp/clock_reader.h"

#include <cstring>

namespace hvd {
namespace {

using std::chrono::nanoseconds;

constexpr int kNumRounds = 16;

}  // namespace

ClockReader::Question ClockReader::Ask() {
  Question question;
  const int64_t now = Nanoseconds(Clock::now());
  std::memcpy(question.data(), &now, sizeof(now));
  return question;
}

ClockReader::Answer ClockReader::AnswerTo(const uint8_t* question) {
  Answer answer;
  const Question here = Ask();
  std::memcpy(answer.data(), question, here.size());
  std::memcpy(answer.data() + here.size(), here.data(), here.size());
  return answer;
}

void ClockReader::Begin() {
  num_rounds_left_ = kNumRounds;
  best_.reset();
}

void ClockReader::Hear(const uint8_t* answer) {
  --num_rounds_left_;
  int64_t asked = 0;
  int64_t there = 0;
  std::memcpy(&asked, answer, sizeof(asked));
  std::memcpy(&there, answer + sizeof(asked), sizeof(there));
  const int64_t way = Nanoseconds(Clock::now()) - asked;  // there and back
  const nanoseconds error(way / 2 + 1);
  if (way < 0 || (best_.has_value() && best_->error <= error)) return;
  const nanoseconds at(asked + way / 2);
  best_ = ClockReading{
      Clock::time_point(std::chrono::duration_cast<Clock::duration>(at)),
      nanoseconds(there) - at, error};
}

}  // namespace hvd
