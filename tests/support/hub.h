/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/hub: a second engine behind the operations table, as unlike sockets as the table allows:
 * addressed by rank ("hub:3"), whole messages, usable on the loop thread of its agent only (which it
 * checks). It joins agents of one process: far__agent_add_transport(agent, &far__hub_ops) before
 * far_agent_join, then the init method at://hub:0. Two jobs at one time need two places: at://hub:40.
 * A place is free again when its agent is freed. */
#ifndef FAR_TESTS_SUPPORT_HUB_H
#define FAR_TESTS_SUPPORT_HUB_H

#include "transport/transport.h"

enum { HUB_RANKS = 64 };

extern const far__transport_ops far__hub_ops;

#endif
