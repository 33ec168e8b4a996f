"""What every test stands on."""

import signal

from hypothesis import HealthCheck, settings

# A runner that was started in the background has these ignored, and hands that on to every process the tests start.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# How fast a busy machine draws inputs and runs a test says nothing about what is tested.
settings.register_profile("shardkit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shardkit")
