//! The file `README`: the syntax of the files, as far as it works here.
//!
//! Tests and tools search it for literal pieces, such as `$arg<N>`, to see what a kernel can do. So
//! a form is listed if and only if it works, in the words of Linux's file.

/// The part about events: how they are defined. [`crate::trigger::README`] follows it where
/// there are triggers.
pub const EVENTS: &str = r#"tracing mini-HOWTO:

# echo 0 > tracing_on : quick way to disable tracing
# echo 1 > tracing_on : quick way to re-enable tracing

 Important files:
  trace			- The static contents of the buffer
			  To clear the buffer write into this file: echo > trace
  trace_pipe		- A consuming read to see the contents of the buffer
  trace_marker		- Writes into this file writes into the kernel buffer
  current_tracer	- function, function_graph or nop
  available_tracers	- list of configured tracers for current_tracer
  available_filter_functions - list of functions that can be filtered on
  set_ftrace_filter	- echo function name in here to only trace these
			  functions
	     accepts: func_full_name or glob-matching-pattern
  set_ftrace_notrace	- echo function name in here to never trace.
  set_ftrace_pid	- Write pid(s) to only function trace those pids
  set_ftrace_notrace_pid - Write pid(s) to not function trace those pids
  set_graph_function	- Trace the nested calls of a function (function_graph)
  set_graph_notrace	- Do not trace the nested calls of a function (function_graph)
  max_graph_depth	- Trace a limited depth of nested calls (0 is unlimited)
  error_log		- What was wrong with the last commands that were refused
			  To clear the log write into this file: echo > error_log
  kprobe_profile	- How often each probe was hit and missed
  uprobe_profile	- How often each probe of a program was hit
  dynamic_events		- Create/append/remove/show the generic dynamic events
			  Write into this file to define/undefine new trace events.
  kprobe_events		- Create/append/remove/show the kernel dynamic events
			  Write into this file to define/undefine new trace events.
  uprobe_events		- Create/append/remove/show the userspace dynamic events
			  Write into this file to define/undefine new trace events.
	  accepts: event-definitions (one definition per line)
	   Format: p[:[<group>/][<event>]] <place> [<args>]
	           r[maxactive][:[<group>/][<event>]] <place> [<args>]
	           w:[<group>/][<event>] [r|w|rw]@<memory>[:<length>] [<args>]
	           -:[<group>/][<event>]
	    place: [<module>:]<symbol>[+<offset>]|<memaddr>
place (kretprobe): [<module>:]<symbol>[+<offset>]%return|<memaddr>
   place (uprobe): <path>:<offset>[%return][(ref_ctr_offset)]
   memory (watch): <address>|<symbol>[+|-<offset>]|-1 (see set_wprobe)
	     args: <name>=fetcharg[:type]
	 fetcharg: %<register>, @<address>, @<symbol>[+|-<offset>],
	           $stack<index>, $stack, $retval, $comm, $arg<N>,
	           +|-[u]<offset>(<fetcharg>), \imm-value, \"imm-string"
	     watches support: $addr, $old, $new
	     kernel return probes support: $retval, $arg<N>, $comm
	     type: s8/16/32/64, u8/16/32/64, x8/16/32/64, char, string, symbol,
	           b<bit-width>@<bit-offset>/<container-size>, ustring,
	           symstr, %pd/%pD, <type>\[<array-size>\]
  events/		- Directory containing all trace event subsystems:
      enable		- Write 0/1 to enable/disable tracing of all events
  events/<system>/	- Directory containing all trace events for <system>:
      enable		- Write 0/1 to enable/disable tracing of all <system>
			  events
  events/<system>/<event>/	- Directory containing control files for
			  <event>:
      enable		- Write 0/1 to enable/disable tracing of <event>
      filter		- If set, only events passing filter are traced
"#;
