"""Recurrent layers on the CPU: LSTM, GRU and plain RNN, forward and backward."""
