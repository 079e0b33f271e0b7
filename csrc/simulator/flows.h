// Messages under way as fluid flows: each has its max-min fair rate, which changes as others begin and end. A
// lane carries one flow at a time, as a connection does; others wait in the order they came.
#pragma once
#include <algorithm>
#include <deque>
#include <vector>

#include "max_min.h"

namespace gradwire_simulator {

// The flow's last byte leaves then, unless its version has changed by that time.
struct Finish {
  double at;
  int64_t flow;
  int64_t version;
};

class Flows {
 public:
  Flows(int64_t flows, int64_t lanes, int64_t links, const double* rates)
      : base_(rates),
        rates_(rates, rates + links),
        states_((size_t)flows),
        users_((size_t)links),
        queues_((size_t)lanes),
        is_taken_((size_t)lanes),
        is_changed_((size_t)links),
        link_seen_((size_t)links),
        max_min_(links) {}

  void start(int64_t flow, int64_t lane, Numbers route, double bytes, double now) {
    states_[(size_t)flow].lane = lane;
    if (is_taken_[(size_t)lane]) {
      queues_[(size_t)lane].push_back({flow, route, bytes});
    } else {
      is_taken_[(size_t)lane] = 1;
      begin(flow, route, bytes, now);
    }
  }

  // From this moment on every link has `factor` times its rate.
  void rescale(double factor) {
    for (size_t link = 0; link < rates_.size(); ++link) {
      rates_[link] = base_[link] * factor;
      if (!users_[link].empty()) change((int64_t)link);
    }
  }

  bool finish(int64_t flow, int64_t version, double now) {
    State& state = states_[(size_t)flow];
    if (!state.active || state.version != version) return false;
    state.active = false;
    for (const int64_t link : state.route) {
      auto& users = users_[(size_t)link];
      users.erase(std::find(users.begin(), users.end(), flow));
      if (!users.empty()) change(link);
    }
    end_lane(state.lane, now);
    return true;
  }

  // Share the links anew after the changes at `now`; valid until the next call.
  const std::vector<Finish>& settle(double now) {
    found_.clear();
    ++round_;
    for (const int64_t link : changed_) {
      is_changed_[(size_t)link] = 0;
      for (const int64_t flow : users_[(size_t)link])
        if (states_[(size_t)flow].seen != round_) settle_around(flow, now);
    }
    changed_.clear();
    return found_;
  }

 private:
  struct State {
    Numbers route;
    double left, rate, since;
    int64_t version;
    int64_t seen;  // the round in which it was settled last
    bool active;
    int64_t lane;
  };
  struct Queued {
    int64_t flow;
    Numbers route;
    double bytes;
  };

  void change(int64_t link) {
    if (is_changed_[(size_t)link]) return;
    is_changed_[(size_t)link] = 1;
    changed_.push_back(link);
  }

  void begin(int64_t flow, Numbers route, double bytes, double now) {
    State& state = states_[(size_t)flow];
    state = {route, bytes, 0, now, 0, state.seen, true, state.lane};
    for (const int64_t link : route) {
      users_[(size_t)link].push_back(flow);
      change(link);
    }
  }

  void end_lane(int64_t lane, double now) {
    auto& queue = queues_[(size_t)lane];
    if (queue.empty()) {
      is_taken_[(size_t)lane] = 0;
      return;
    }
    const Queued next = queue.front();
    queue.pop_front();
    begin(next.flow, next.route, next.bytes, now);
  }

  void settle_around(int64_t flow, double now) {
    if (is_alone(flow)) {
      states_[(size_t)flow].seen = round_;
      set_rate(flow, lowest_rate(flow), now);
      return;
    }
    gather(flow);
    routes_.clear();
    for (const int64_t one : together_) routes_.push_back(states_[(size_t)one].route);
    max_min_.share(routes_, links_, rates_.data(), given_);
    for (size_t i = 0; i < together_.size(); ++i) set_rate(together_[i], given_[i], now);
  }

  bool is_alone(int64_t flow) const {
    for (const int64_t link : states_[(size_t)flow].route)
      if (users_[(size_t)link].size() != 1) return false;
    return true;
  }

  double lowest_rate(int64_t flow) const {
    const Numbers& route = states_[(size_t)flow].route;
    double lowest = rates_[(size_t)route.first[0]];
    for (const int64_t link : route)
      if (rates_[(size_t)link] < lowest) lowest = rates_[(size_t)link];
    return lowest;
  }

  // A flow and all that share a link with it, or with one that does, and their links: ascending.
  void gather(int64_t flow) {
    together_.assign(1, flow);
    links_.clear();
    states_[(size_t)flow].seen = round_;
    for (size_t i = 0; i < together_.size(); ++i) {
      for (const int64_t link : states_[(size_t)together_[i]].route) {
        if (link_seen_[(size_t)link] == round_) continue;
        link_seen_[(size_t)link] = round_;
        links_.push_back(link);
        for (const int64_t user : users_[(size_t)link]) {
          if (states_[(size_t)user].seen == round_) continue;
          states_[(size_t)user].seen = round_;
          together_.push_back(user);
        }
      }
    }
    std::sort(together_.begin(), together_.end());
    std::sort(links_.begin(), links_.end());
  }

  void set_rate(int64_t flow, double rate, double now) {
    State& state = states_[(size_t)flow];
    if (state.rate == rate) return;
    state.left -= state.rate * (now - state.since);
    state.rate = rate;
    state.since = now;
    state.version = ++versions_;
    found_.push_back({now + (state.left > 0 ? state.left : 0) / rate, flow, state.version});
  }

  const double* base_;
  std::vector<double> rates_;
  std::vector<State> states_;
  std::vector<std::vector<int64_t>> users_;  // of each link, in the order in which they came
  std::vector<std::deque<Queued>> queues_;   // of each lane
  std::vector<char> is_taken_;
  std::vector<char> is_changed_;
  std::vector<int64_t> changed_;
  std::vector<int64_t> link_seen_;
  int64_t round_ = 0;
  int64_t versions_ = 0;
  std::vector<int64_t> together_, links_;
  std::vector<Numbers> routes_;
  std::vector<double> given_;
  std::vector<Finish> found_;
  MaxMin max_min_;
};

}  // namespace gradwire_simulator
