// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/text.h"

extern char** environ;

namespace compact {
namespace {

constexpr size_t kLinesKept = 20;
constexpr const char* kParent = "COMPACT_PARENT";  // the parent's process id, for its child

volatile std::sig_atomic_t g_child = 0, g_signal = 0;

void pass_on(int signal, siginfo_t* info, void*) {
  g_signal = signal;
  const bool from_terminal = signal == SIGINT && info->si_code > 0;
  if (g_child > 0 && !from_terminal) kill(g_child, signal);
}

// While it lives, passes SIGINT and SIGTERM on to the child.
class SignalsPassedOn {
 public:
  SignalsPassedOn() {
    g_child = 0;
    g_signal = 0;
    struct sigaction action {};
    action.sa_sigaction = pass_on;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &old_interrupt_);
    sigaction(SIGTERM, &action, &old_terminate_);
  }
  ~SignalsPassedOn() {
    g_child = 0;
    sigaction(SIGINT, &old_interrupt_, nullptr);
    sigaction(SIGTERM, &old_terminate_, nullptr);
  }
  SignalsPassedOn(const SignalsPassedOn&) = delete;

 private:
  struct sigaction old_interrupt_, old_terminate_;
};

}  // namespace

void end_with_parent() {
  const char* parent = std::getenv(kParent);
  if (!parent || std::to_string(getppid()) != parent) return;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (std::to_string(getppid()) != parent) raise(SIGTERM);  // the parent has ended meanwhile
}

std::string own_program() { return reinterpret_cast<const char*>(getauxval(AT_EXECFN)); }

ProcessResult run_process(const std::vector<std::string>& arguments,
                          const std::function<void(const std::string&)>& on_error, bool silent) {
  COMPACT_CHECK(!arguments.empty(), "[process] there is no program to run");
  int ends[2];
  COMPACT_CHECK(pipe2(ends, O_CLOEXEC) == 0, "[process] no pipe: ", std::strerror(errno));
  const FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);

  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  std::string parent = cat(kParent, "=", getpid());
  std::vector<char*> variables = {parent.data()};
  for (char** v = environ; *v; ++v) {
    if (!std::string_view(*v).starts_with(cat(kParent, "="))) variables.push_back(*v);
  }
  variables.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDERR_FILENO);
  if (silent) {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  }
  const SignalsPassedOn signals;
  // Signals are blocked until the child's process id is known; in the child they are not.
  sigset_t waiting, before;
  sigemptyset(&waiting);
  sigaddset(&waiting, SIGINT);
  sigaddset(&waiting, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &waiting, &before);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigmask(&attributes, &before);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t child = 0;
  const int error =
      posix_spawn(&child, argv[0], &actions, &attributes, argv.data(), variables.data());
  if (error == 0) g_child = child;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  COMPACT_CHECK(error == 0, arguments[0], ": cannot be started: ", std::strerror(error));
  write_end.reset();

  ProcessResult result;
  std::string rest;
  const auto give = [&](const std::string& line) {
    if (on_error) on_error(line);
    if (result.errors.size() == kLinesKept) result.errors.erase(result.errors.begin());
    result.errors.push_back(line);
  };
  char buffer[4096];
  while (true) {
    const ssize_t n = read(read_end.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    rest.append(buffer, static_cast<size_t>(n));
    for (size_t end; (end = rest.find('\n')) != rest.npos; rest.erase(0, end + 1)) {
      give(rest.substr(0, end));
    }
  }
  if (!rest.empty()) give(rest);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  g_child = 0;
  result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result.signal = g_signal;
  return result;
}

}  // namespace compact
