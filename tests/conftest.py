"""What every test stands on."""

import signal

# A runner that was started in the background has these ignored, and hands that on to every process the tests start.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
