"""With this folder and the repository's root on PYTHONPATH, every Python begins with the simulated GPU."""

from integration_tests.simulated_gpu.device import start

start()
