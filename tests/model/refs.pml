/* SPDX-License-Identifier: BSD-3-Clause
 * A model of the reference protocol (docs/references.md) for spin: one value at its owner, USERS users,
 * at most FORKS forks, each on a message of its own. tests/model/run runs it.
 *
 * The network may lose, delay, reorder and double anything: what a step needs may come at any later
 * moment or never (a message that is never delivered is refused by `void` in the end), and a double
 * is delivered wherever it would make a difference. CRASHES users may die at any moment; each other
 * worker learns of it, and ends its grace period, at any later moment of its own.
 *
 * Every run ends: each step uses something up. Checked: no use of a freed value, by assertions in the
 * steps; and when nothing can happen any more, the value is freed and nobody keeps anything.
 *
 * With -DBREAK=n the n-th rule is left out, and spin must find an error (tests/model/run breaks).
 *
 * To keep the states few, a call and its answer are one step where nothing can come between them that
 * matters, and what is over is forgotten (tidy). */

#ifndef USERS
#define USERS 2
#endif
#ifndef FORKS
#define FORKS 3
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef REPLIES
#define REPLIES 1 /* references travel in replies too */
#endif
#ifndef CHAIN
#define CHAIN 0 /* 1: only the newest fork is passed on, so that the forks are a chain */
#endif
#ifndef BREAK
#define BREAK 0
#endif

#define OWNER 0 /* workers: 0, then the users from 1 */
#define NOBODY 7
#define ROOT FORKS /* as a parent: the owner's own entry */

/* The fork at its holder. */
#define NONE 0
#define NEW 1         /* to be registered */
#define REGISTERING 2 /* the owner has been asked, its answer is under way */
#define REFUSED 3     /* likewise */
#define CONFIRMED 4
#define ENDED 5 /* released, or never to be registered */

/* Of fork f; `giver` made it, `holder` is whom it was sent to. */
byte giver[FORKS] = NOBODY, holder[FORKS] = NOBODY, parent[FORKS];
bool is_reply[FORKS];
bool travels[FORKS]; /* its message may still be delivered */
bool seen[FORKS];    /* by the receiver: arrived, or will not be taken */
byte state[FORKS];
bool held[FORKS];   /* by the holder's program */
bool child[FORKS];  /* at the giver: on its way, keeps its parent */
bool over[FORKS];   /* at the giver: answered, or asked about by `void` */
bool asking[FORKS]; /* the call `void` is open */
bool void_done[FORKS], void_yes[FORKS]; /* it was done, and what was answered: taken */
bool accepting[FORKS];                  /* the call `accept` is open */
bool live[FORKS], tomb[FORKS];          /* at the owner */
bool tainted[FORKS]; /* somebody through whose hands it came is dead */

byte made = 0;       /* forks so far */
byte used = 0;       /* users that had one: they are alike, so the next is the next */
bool entry_held = 1; /* the owner's program holds the value */
bool freed = 0;

bool may_die = 0; /* in this run; decided at its begin, so that runs end without a death too */

byte dead = NOBODY;
bool lost[USERS + 1];    /* knows that `dead` is dead */
bool dropped[USERS + 1]; /* its grace period is over */

#define ALIVE(w) ((w) != dead)
#define FROM_OWNER(f) (giver[f] == OWNER)
#define TO_OWNER(f) (holder[f] == OWNER)
#define BETWEEN_USERS(f) (!FROM_OWNER(f) && !TO_OWNER(f))
#define KNOWS_LOSS(w, whose) (lost[w] && (whose) == dead)

/* Only after a death among those who handed it on, and a grace period that is over. */
#if USERS == 2
#define MAY_BE_GONE(f) (tainted[f] && (dropped[0] || dropped[1] || dropped[2]))
#else
#define MAY_BE_GONE(f) (tainted[f] && (dropped[0] || dropped[1] || dropped[2] || dropped[3]))
#endif

/* A child of fork f is on its way. */
#define IS_CHILD(g, f) (child[g] && parent[g] == f)
#if FORKS == 2
#define HAS_CHILDREN(f) (IS_CHILD(0, f) || IS_CHILD(1, f))
#elif FORKS == 3
#define HAS_CHILDREN(f) (IS_CHILD(0, f) || IS_CHILD(1, f) || IS_CHILD(2, f))
#else
#define HAS_CHILDREN(f) (IS_CHILD(0, f) || IS_CHILD(1, f) || IS_CHILD(2, f) || IS_CHILD(3, f))
#endif

byte i, j; /* of the loops inside a step */
bool any;

/* Forgets a fork that is over: states that differ in nothing else are one. */
inline tidy()
{
    for (i : 0 .. FORKS - 1) {
        if
        :: giver[i] != NOBODY && (state[i] == ENDED || state[i] == NONE) && !held[i] &&
           !travels[i] && !(child[i] && ALIVE(giver[i])) && !asking[i] && !accepting[i] &&
           !live[i] && (over[i] || seen[i]) && !HAS_CHILDREN(i) ->
            giver[i] = NOBODY;
            holder[i] = NOBODY;
            parent[i] = 0;
            is_reply[i] = 0;
            seen[i] = 0;
            state[i] = NONE;
            child[i] = 0;
            over[i] = 0;
            void_done[i] = 0;
            void_yes[i] = 0;
            tomb[i] = 0;
            tainted[i] = 0
        :: else
        fi
    }
    i = 0
}

/* The owner's entry goes with the last that keeps it. */
inline check_entry()
{
    any = entry_held;
    for (i : 0 .. FORKS - 1) {
        any = any || live[i] || IS_CHILD(i, ROOT)
    }
    if
    :: !any && !freed ->
        freed = 1;
        for (i : 0 .. FORKS - 1) {
            /* Nobody who is sure of it has it, nobody who may hope for it needs it. */
            assert(!(state[i] == CONFIRMED && ALIVE(holder[i])));
            assert(!(held[i] && ALIVE(holder[i]) && !MAY_BE_GONE(i)))
        }
    :: else
    fi;
    any = 0;
    tidy()
}

/* A fork travels from w, who has `from`, to `whom`. */
inline send(w, from, whom, as_reply)
{
    giver[made] = w;
    holder[made] = whom;
    parent[made] = from;
    is_reply[made] = as_reply;
    travels[made] = 1;
    child[made] = 1;
    if
    :: from != ROOT -> tainted[made] = tainted[from]
    :: else -> live[made] = 1
    fi;
    if
    :: whom > used -> used = whom
    :: else
    fi;
    made++
}

inline arrive(f)
{
    travels[f] = 0;
    if
    :: !ALIVE(holder[f]) || KNOWS_LOSS(holder[f], giver[f])
    :: else ->
        seen[f] = 1;
        if
        :: TO_OWNER(f) ->
            assert(!freed || MAY_BE_GONE(f));
            accepting[f] = is_reply[f]
        :: FROM_OWNER(f) ->
            state[f] = CONFIRMED;
            held[f] = 1;
            accepting[f] = is_reply[f]
        :: else ->
            state[f] = NEW;
            held[f] = 1;
            accepting[f] = (BREAK == 2)
        fi
    fi;
    tidy()
}

/* The giver knows what became of the message. */
inline end_child(f, arrived)
{
    if
    :: (arrived) && BETWEEN_USERS(f) && BREAK != 3 /* it is not registered yet */
    :: else ->
        child[f] = 0;
        if
        :: FROM_OWNER(f) && !(arrived) && BREAK != 4 -> live[f] = 0
        :: else
        fi
    fi;
    check_entry()
}

inline on_register(f)
{
    if
    :: freed ->
        assert(MAY_BE_GONE(f));
        tomb[f] = 1;
        state[f] = REFUSED
    :: else ->
        live[f] = 1;
        state[f] = REGISTERING
    fi
}

inline on_void(f)
{
    void_done[f] = 1;
    void_yes[f] = seen[f];
    seen[f] = seen[f] || (BREAK != 7);
    if
    :: seen[f] && BREAK != 1 -> travels[f] = 0 /* it would be dropped as a double */
    :: else
    fi
}

inline on_release(f)
{
    state[f] = ENDED;
    live[f] = 0;
    if
    :: FROM_OWNER(f) -> child[f] = 0 /* it has arrived */
    :: else -> tomb[f] = 1
    fi;
    check_entry()
}

inline die(w)
{
    dead = w;
    for (j : 0 .. FORKS - 1) {
        if
        :: holder[j] == w ->
            state[j] = ENDED;
            held[j] = 0;
            tainted[j] = 1;
            accepting[j] = 0
        :: else
        fi;
        if
        :: giver[j] == w ->
            child[j] = 0;
            asking[j] = 0;
            over[j] = 1;
            tainted[j] = 1
        :: else
        fi
    }
    for (j : 0 .. FORKS - 1) { /* a parent has the lower number */
        if
        :: giver[j] != NOBODY && parent[j] != ROOT && tainted[parent[j]] -> tainted[j] = 1
        :: else
        fi
    }
    j = 0;
    tidy()
}

/* The end of the grace period at w. */
inline drop(w)
{
    dropped[w] = 1;
    for (j : 0 .. FORKS - 1) {
        if
        :: holder[j] == dead && giver[j] == w ->
            child[j] = 0;
            asking[j] = 0;
            over[j] = 1
        :: else
        fi;
        if
        :: holder[j] == dead && w == OWNER && BREAK != 8 -> live[j] = 0
        :: else
        fi
    }
    j = 0;
    check_entry()
}

/* What can happen to fork f. */
#define STEPS(f)                                                                                   \
    :: d_step { travels[f] && (!seen[f] || BREAK == 1) -> arrive(f) }                              \
    :: d_step { held[f] -> held[f] = 0; tidy() }                                                   \
    /* the giver reads an answer; or there will be none, or the connection broke */                \
    :: d_step { giver[f] != NOBODY && !is_reply[f] && !over[f] && seen[f] && ALIVE(giver[f]) ->    \
                over[f] = 1; end_child(f, 1) }                                                     \
    :: d_step { child[f] && !over[f] && ALIVE(giver[f]) && !KNOWS_LOSS(giver[f], holder[f]) ->     \
                over[f] = 1; asking[f] = (BREAK != 9) }                                            \
    /* void: done; done again if that would change its answer; answered */                         \
    :: d_step { asking[f] && (!void_done[f] || BREAK == 6 && void_yes[f] != seen[f]) &&            \
                ALIVE(holder[f]) && !KNOWS_LOSS(holder[f], giver[f]) -> on_void(f) }               \
    :: d_step { asking[f] && void_done[f] -> asking[f] = 0; end_child(f, void_yes[f]) }            \
    /* register: done; done again, at any time; answered */                                        \
    :: d_step { state[f] == NEW && ALIVE(holder[f]) && !KNOWS_LOSS(OWNER, holder[f]) ->            \
                on_register(f) }                                                                   \
    :: d_step { BETWEEN_USERS(f) && (state[f] == CONFIRMED || state[f] == ENDED && tomb[f]) &&     \
                !live[f] && (!tomb[f] || BREAK == 5) && !freed && !KNOWS_LOSS(OWNER, holder[f]) -> \
                live[f] = 1 }                                                                      \
    :: d_step { (state[f] == REGISTERING || state[f] == REFUSED) && ALIVE(holder[f]) ->            \
                state[f] = (state[f] == REFUSED -> ENDED : CONFIRMED);                             \
                accepting[f] = (BREAK != 10); tidy() }                                             \
    :: d_step { accepting[f] && (ALIVE(giver[f]) || KNOWS_LOSS(holder[f], giver[f])) ->            \
                accepting[f] = 0;                                                                  \
                if :: ALIVE(giver[f]) -> child[f] = 0 :: else fi; check_entry() }                  \
    /* the end: not registered yet, and registered */                                              \
    :: d_step { state[f] == NEW && !held[f] && ALIVE(holder[f]) && !HAS_CHILDREN(f) ->             \
                state[f] = ENDED; accepting[f] = 1 }                                               \
    :: d_step { state[f] == CONFIRMED && !held[f] && ALIVE(holder[f]) &&                           \
                (BREAK == 11 || !HAS_CHILDREN(f)) -> on_release(f) }

/* A fork's holder, or the owner, passes it on, in a request and in a reply. */
#define PASS_TO(may, sender, from, whom)                                                           \
    :: d_step { made < FORKS && (may) && whom <= used + 1 && !KNOWS_LOSS(sender, whom) ->          \
                send(sender, from, whom, 0) }                                                      \
    :: d_step { REPLIES && made < FORKS && (may) && whom <= used + 1 &&                            \
                !KNOWS_LOSS(sender, whom) -> send(sender, from, whom, 1) }
#define MAY_PASS(f) ((CHAIN == 0 || made == f + 1) && held[f] && ALIVE(holder[f]) && state[f] != ENDED)
#if USERS == 2
#define PASS(f)                                                                                    \
    PASS_TO(MAY_PASS(f), holder[f], f, OWNER)                                                      \
    PASS_TO(MAY_PASS(f), holder[f], f, 1)                                                          \
    PASS_TO(MAY_PASS(f), holder[f], f, 2)
#else
#define PASS(f)                                                                                    \
    PASS_TO(MAY_PASS(f), holder[f], f, OWNER)                                                      \
    PASS_TO(MAY_PASS(f), holder[f], f, 1)                                                          \
    PASS_TO(MAY_PASS(f), holder[f], f, 2)                                                          \
    PASS_TO(MAY_PASS(f), holder[f], f, 3)
#endif

#define MAY_GIVE (entry_held && (CHAIN == 0 || made == 0))

#define LEARN(w)                                                                                   \
    :: d_step { dead != NOBODY && ALIVE(w) && !lost[w] -> lost[w] = 1 }                            \
    :: d_step { lost[w] && !dropped[w] -> drop(w) }
#define DIE(w) :: d_step { may_die && dead == NOBODY && used >= w -> die(w) }

active proctype world()
{
    if
    :: CRASHES > 0 -> may_die = 1
    :: may_die = 0
    fi;
    do
    STEPS(0)
    PASS(0)
    STEPS(1)
    PASS(1)
#if FORKS > 2
    STEPS(2)
    PASS(2)
#endif
#if FORKS > 3
    STEPS(3)
#endif
    PASS_TO(MAY_GIVE, OWNER, ROOT, 1)
    PASS_TO(MAY_GIVE, OWNER, ROOT, 2)
#if USERS > 2
    PASS_TO(MAY_GIVE, OWNER, ROOT, 3)
#endif
    :: d_step { entry_held -> entry_held = 0; check_entry() }
    LEARN(0)
    LEARN(1)
    LEARN(2)
    DIE(1)
    DIE(2)
#if USERS > 2
    LEARN(3)
    DIE(3)
#endif
    :: else -> break
    od;
    /* Nothing can happen any more: nothing must be left. */
    assert(freed);
    d_step {
        for (i : 0 .. FORKS - 1) {
            assert(!live[i] && !held[i]);
            assert(holder[i] == NOBODY || !ALIVE(holder[i]) ||
                   (!accepting[i] && (state[i] == NONE || state[i] == ENDED)));
            assert(giver[i] == NOBODY || !ALIVE(giver[i]) || (!child[i] && !asking[i]))
        }
    }
}
