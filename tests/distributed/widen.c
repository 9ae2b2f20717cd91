/* Preloaded: a lock that a thread other than the first takes is held five milliseconds longer, busy. So a fork meets it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

long widened;

static int stay(int taken) {
    struct timespec begin, now;
    if (taken == 0 && syscall(SYS_gettid) != getpid()) {
        __sync_fetch_and_add(&widened, 1);
        clock_gettime(CLOCK_MONOTONIC, &begin);
        do clock_gettime(CLOCK_MONOTONIC, &now);
        while ((now.tv_sec - begin.tv_sec) * 1000000000L + now.tv_nsec - begin.tv_nsec < 5000000L);
    }
    return taken;
}

int sem_wait(sem_t *lock) {
    int (*real)(sem_t *) = (int (*)(sem_t *))dlsym(RTLD_NEXT, "sem_wait");
    return stay(real(lock));
}

int sem_trywait(sem_t *lock) {
    int (*real)(sem_t *) = (int (*)(sem_t *))dlsym(RTLD_NEXT, "sem_trywait");
    return stay(real(lock));
}

int sem_clockwait(sem_t *lock, clockid_t clock, const struct timespec *until) {
    int (*real)(sem_t *, clockid_t, const struct timespec *) =
        (int (*)(sem_t *, clockid_t, const struct timespec *))dlsym(RTLD_NEXT, "sem_clockwait");
    return stay(real(lock, clock, until));
}
